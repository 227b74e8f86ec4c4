"""The command line of `sophon-agent ray`. What its commands do is in `ray_fleet.py`."""

from __future__ import annotations

import argparse

from storage_agent.command.argument_types import add_export, count, new_command, ports, resource, seconds

_ABOUT = """Keep an agent on each storage node of a Ray cluster: Ray starts it, and starts it again when it or its node
has died. Loaders find the agents by ray://HEAD:8265/EXPORT. Needs the extra `fleet`."""
_MORE = """examples:
  # On each storage node, which has this package too:
  ray start --address=head:6379 --num-cpus=0 --resources='{"sophon": 1}'
  # Once, on any node of the cluster:
  sophon-agent ray start --export imagenet=/data/imagenet --keys /shared/sophon
  sophon-agent ray list
  sophon-agent ray stop
"""
_START = """Have an agent on each node that carries the resource, and wait until all serve. Those that no node can run
wait for one, also after this has ended."""
_START_MORE = """examples:
  sophon-agent ray start --export imagenet=/data/imagenet --keys /shared/sophon
  # What follows -- is for `sophon-agent serve`:
  sophon-agent ray start --export imagenet=/data/imagenet --keys /shared/sophon -- --workers 8 --nice 10
  # As many agents as the trainings that find them in that folder can use:
  sophon-agent ray start --export imagenet=/data/imagenet --keys /shared/sophon --min 1 --max 4 -- \\
    --announce /shared/run/agents
"""
_STOP = """End the agents, each when it has answered its last requests, and first what sizes the fleet. Ray does not
start them again."""
_STOP_MORE = """example:
  sophon-agent ray stop
"""
_LIST = """Print a line for each agent: its name, its state, where it listens, and what it serves; and one for each
fleet that sizes itself."""
_LIST_MORE = """example:
  sophon-agent ray list
"""


def add_ray(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command `ray` and its own commands."""
    parser = new_command(commands, "ray", "keep agents on the nodes of a Ray cluster", _ABOUT, _MORE)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    start = new_command(commands, "start", "have an agent on each storage node", _START, _START_MORE)
    stop = new_command(commands, "stop", "end them", _STOP, _STOP_MORE)
    listing = new_command(commands, "list", "show where they are", _LIST, _LIST_MORE)
    for command, name in ((start, "start"), (stop, "stop"), (listing, "list")):
        command.set_defaults(command=f"ray {name}")
        command.add_argument(
            "--address",
            default="auto",
            metavar="HOST:PORT",
            help="Of the cluster's head, if several clusters run on this host (default: the one that does).",
        )
        if command is not listing:
            command.add_argument(
                "--resource",
                default="sophon",
                type=resource,
                metavar="NAME",
                help="The resource of storage nodes, of which each agent holds 1 (default: %(default)s).",
            )
    listing.add_argument("--json", action="store_true", help="Print a JSON object in each line.")
    add_export(start)
    start.add_argument("--agents", type=count, metavar="N", help="How many (default: one for each such node).")
    start.add_argument(
        "--min",
        type=count,
        dest="least",
        metavar="N",
        help="With --max, instead of --agents: have as many agents as trainings can use, and at least so many. "
        "It needs -- --announce FOLDER, where trainings say it.",
    )
    start.add_argument("--max", type=count, dest="most", metavar="N", help="At most so many.")
    start.add_argument(
        "--ports",
        type=ports,
        metavar="FIRST-LAST",
        help="Listen at the first free port of these on each node, such as 5555-5655 (default: any free port).",
    )
    start.add_argument(
        "--interface",
        default="",
        metavar="NAME",
        help="Listen at the address of this network interface of each node (default: the node's address in Ray).",
    )
    start.add_argument(
        "--wait",
        type=seconds,
        default=90.0,
        metavar="S",
        help="Seconds to wait until all agents serve (default: %(default)g).",
    )
    who = start.add_mutually_exclusive_group(required=True)
    who.add_argument(
        "--keys", metavar="FOLDER", help="On each node, the same folder with keys, made before by `key add`."
    )
    who.add_argument("--insecure", action="store_true", help="Ask for no key.")
    start.add_argument("serve", nargs="*", metavar="-- OPTION", help="Further options of `sophon-agent serve`.")
