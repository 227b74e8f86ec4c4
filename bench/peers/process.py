"""A process of one system, run by the python of that system's environment.

python -m bench.peers.process serve SETTINGS    make what is to be served, serve it, say so, end with standard input
python -m bench.peers.process load SETTINGS     answer lines of standard input with one line of JSON each:
    prepare     what the system does once before it is measured (ours: profile)
    first N     the seconds to the first batch of epoch N, the loader's construction included if it is the first line
    epoch N     a whole epoch
    check N     a whole epoch, with digests of all batches and of their labels alone
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import zlib
from typing import Any

import numpy as np

from bench.peers.systems import SYSTEMS, Client, Settings


def main() -> int:
    role, settings = sys.argv[1], Settings.from_json(sys.argv[2])
    # The answers go to a file of their own: what libraries print must not come between them.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module = importlib.import_module(f"bench.peers.{SYSTEMS[settings.system].module}")
    if role == "serve":
        with module.server(settings):
            print("{}", file=answers)
            sys.stdin.read()
        return 0
    client: Client | None = None
    print("{}", file=answers)
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        started_s = time.perf_counter()
        client = client or module.open_client(settings)
        row: dict[str, Any] = {}
        if what == "prepare":
            client.prepare()
        else:
            row = run_epoch(client, what, int(number), started_s)
        print(json.dumps(row), file=answers)
    if client is not None:
        client.close()
    return 0


def run_epoch(client: Client, what: str, number: int, started_s: float) -> dict[str, Any]:
    """One epoch, up to the moment at which its last batch is there."""
    first_s, arrived_s, samples, digest, labels_digest, shape = 0.0, 0.0, 0, 0, 0, ()
    for images, labels in client.batches(number):
        arrived_s = time.perf_counter()
        first_s = first_s or arrived_s - started_s
        samples, shape = samples + len(labels), tuple(images.shape[1:])
        if what == "first":
            break
        if what == "check":
            digest = zlib.crc32(np.ascontiguousarray(images).data, digest)
            labels_digest = zlib.crc32(np.asarray(labels).astype(np.int64).data, labels_digest)
    row = {"seconds": arrived_s - started_s, "first_batch_s": first_s, "samples": samples, "shape": shape}
    if what == "check":
        row |= {"digest": f"{digest:08x}", "labels_digest": f"{labels_digest:08x}"}
    return row


if __name__ == "__main__":
    sys.exit(main())
