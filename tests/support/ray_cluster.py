"""A Ray cluster on this host, with a token and a dashboard: `python -m tests.support.ray_cluster NODES`.

Takes lines on standard input (`add`, `remove NUMBER`, `remove head`, `add head`) and answers each with one; ends with
its input. To be run in a network namespace with nothing but `lo`: Ray finds the host's own address wherever there is
another one.
"""

from __future__ import annotations

import sys


def main(count: int) -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": 8265, "gcs_server_port": 6379}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = []

    def add() -> None:
        nodes.append(cluster.add_node(num_cpus=0, resources={"sophon": 1}, object_store_memory=80 << 20))

    try:
        for _ in range(count):
            add()
        print("ready", cluster.address, flush=True)
        for line in sys.stdin:
            verb, _, which = line.strip().partition(" ")
            if verb == "add" and not which:
                add()
            elif verb == "add":
                cluster.add_node(**head)
            else:  # its processes are killed, as those of a host that loses its power
                gone = cluster.head_node if which == "head" else nodes[int(which)]
                cluster.remove_node(gone, allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
