"""The command line of `sophon-agent`: its commands, options and help. What the commands do is in `__main__.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from sophon_loader import __version__
from storage_agent.command.argument_types import add_export, new_command, place, seconds, share
from storage_agent.command.ray_arguments import add_ray
from storage_agent.host import log
from storage_agent.host.agent_settings import AgentSettings

USUAL_KEYS = "~/.config/sophon/agent"
USUAL_PORT = 5555

_ABOUT = """sophon-agent runs where the training files lie. It serves folders to the OffloadingDataLoaders of other
hosts, and runs the first preprocessing steps of those samples that are worth it."""
_EXAMPLES = """examples:
  sophon-agent serve --export imagenet=/data/imagenet --bind tcp://0.0.0.0:5555
  sophon-agent key add gpu-7
  sophon-agent status tcp://fileserver:5555
"""
_SERVE = """Serve folders to loaders until SIGTERM or Ctrl-C. Once loaders can connect, one line of JSON on standard
output says where; the log goes to standard error."""
_SERVE_MORE = """memory:
  Besides the samples in the making, the agent holds at most
  - 512 MiB of messages from loaders that it has not read; then it closes the connections that hold most,
  - 256 MiB of requests that it has not answered; then it refuses more from the loaders that hold most,
  - 512 MiB (or twice --max-file-mb, if that is more) of replies that loaders have not read; then it makes
    no more of them, and closes connections that do not read.
  A loader whose connection is closed connects again.

examples:
  # For loaders on this host only:
  sophon-agent serve --export imagenet=/data/imagenet
  # For other hosts too. Makes the first key, and prints how to copy it:
  sophon-agent serve --export imagenet=/data/imagenet --bind tcp://0.0.0.0:5555
  # Pictures in tar or zip files, served without unpacking:
  sophon-agent serve --export "imagenet=tar:///data/shards/{000000..000099}.tar"
  # Pictures in the tables that Hugging Face's datasets write (pip install 'sophon_loader[tables]'):
  sophon-agent serve --export "food=parquet:///data/food101/train-*.parquet"
  # Pictures in the shards that MosaicML streaming writes, uncompressed:
  sophon-agent serve --export food=mds:///data/food101-mds
  # Pictures in a blob column of a Lance set (pip install 'sophon_loader[lance]'):
  sophon-agent serve --export food=lance:///data/food101.lance
  # Objects of a bucket, with the credentials of the environment (pip install 'sophon_loader[stores]'):
  sophon-agent serve --export imagenet=s3://bucket/imagenet/train
  # Together with other agents, which announce themselves in a folder:
  sophon-agent serve --export imagenet=/data/imagenet --bind tcp://0.0.0.0:0 --announce /shared/run/agents
  # On a file server that has other work to do:
  sophon-agent serve --export imagenet=/data/imagenet --bind tcp://0.0.0.0:5555 --cpu-share 0.5 --nice 10
"""
_INDEX = """Read archives and note where each file lies in them, or list a bucket's objects, so that an agent that
serves them starts at once. Of archives, it does the same at its first start; of a bucket, it lists at each start
unless a listing is kept, which this command alone replaces. Prints the path of the index."""
_INDEX_MORE = """examples:
  sophon-agent index tar:///data/pictures.tar
  sophon-agent index "tar:///data/shards/{000000..000099}.tar"
  sophon-agent index "zip:///data/*.zip" --index-folder /var/lib/sophon/indexes
  sophon-agent index s3://bucket/imagenet/train
"""
_STATUS = "Ask a running agent what it serves, who is connected, what it is doing and what went wrong."
_STATUS_MORE = """examples:
  sophon-agent status tcp://fileserver:5555
  sophon-agent status tcp://fileserver:5555 --json
  sophon-agent status tcp://fileserver:5555 --key ~/.config/sophon/keys/fileserver:5555
"""
_KEY = """Say who may connect to the agent of this host: add, remove and list keys. A running agent follows within
a second; it need not be restarted."""
_KEY_MORE = """examples:
  sophon-agent key add gpu-7                      # let in one more loader, for all exports
  sophon-agent key add guest --export imagenet    # let in one for this export only
  sophon-agent key list
  sophon-agent key remove guest                   # also ends the connections that it has open

To replace a key, add one under another name, copy it to the loader, then remove the old one.
"""
_KEY_ADD = "Let one more loader in. Prints the two shell lines that copy its key to the loader's host."
_KEY_ADD_MORE = """examples:
  sophon-agent key add gpu-7                      # for all exports
  sophon-agent key add guest --export imagenet    # for one
"""
_KEY_REMOVE = "Stop letting a loader in. Its open connections get nothing more within a second."
_KEY_REMOVE_MORE = """example:
  sophon-agent key remove guest
"""
_KEY_LIST = "Print a line for each key: its name, the exports that it may read, and the start of its public half."
_KEY_LIST_MORE = """example:
  sophon-agent key list
"""

_Group = argparse._ArgumentGroup


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. `command` is the name of a command, such as "serve" or "key add"."""
    made = argparse.ArgumentParser(
        prog="sophon-agent",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=__version__, help="Print the version and exit.")
    commands = made.add_subparsers(required=True, metavar="COMMAND", title="commands")
    _add_serve(new_command(commands, "serve", "serve folders to loaders", _SERVE, _SERVE_MORE))
    _add_status(new_command(commands, "status", "show what a running agent does", _STATUS, _STATUS_MORE))
    _add_index(new_command(commands, "index", "index archives or a bucket beforehand", _INDEX, _INDEX_MORE))
    _add_key(new_command(commands, "key", "say who may connect", _KEY, _KEY_MORE))
    add_ray(commands)
    return made


# --- serve ----------------------------------------------------------------------------------------------------


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="serve")
    _add_served(parser.add_argument_group("what is served, and where"))
    _add_who(parser.add_argument_group("who may connect"))
    _add_share(parser.add_argument_group("how much of this host it may use"))
    _add_limits(parser.add_argument_group("limits"))
    _add_log(parser.add_argument_group("log and process"))


def _add_served(group: _Group) -> None:
    add_export(group)
    _add_index_folder(group)
    _add_place(group)


def _add_place(group: _Group) -> None:
    group.add_argument(
        "--bind",
        default="tcp://127.0.0.1:5555",
        metavar="ADDRESS",
        help="Where to listen. tcp://0.0.0.0:5555 is reachable from other hosts; port 0 takes a free one "
        "(default: %(default)s, for this host only).",
    )
    group.add_argument(
        "--announce",
        type=Path,
        metavar="FOLDER",
        help="Keep a file in this folder that says where the agent listens and what it serves, while it serves.",
    )
    group.add_argument(
        "--announce-as",
        default=AgentSettings.announce_as,
        metavar="HOST[:PORT]",
        help="What that file says instead of the host and the port of --bind (default: this host's name if --bind is "
        "0.0.0.0 or [::]).",
    )
    group.add_argument(
        "--ops",
        action="append",
        default=[],
        metavar="MODULE",
        help="Import this Python module, which registers transforms of your own by register_op, which needs the extra "
        "`torch`. May be repeated.",
    )


def _add_who(group: _Group) -> None:
    group.add_argument(
        "--keys",
        type=Path,
        metavar="FOLDER",
        help=f"Let in only loaders with a key from this folder (default: {USUAL_KEYS} if other hosts can reach --bind, "
        "else none).",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="Ask for no key: anyone who can reach --bind may read all exports.",
    )


def _add_share(group: _Group) -> None:
    amount = group.add_mutually_exclusive_group()
    amount.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="Processes that decode, crop and resize, of one core each at most (default: as many as this host has "
        "cores to use).",
    )
    amount.add_argument(
        "--cpu-share",
        type=share,
        metavar="S",
        help="Instead of --workers: as many as this share of the cores, above 0 and up to 1, but at least one.",
    )
    group.add_argument(
        "--op-workers",
        type=int,
        metavar="N",
        help="Further processes, with torch, for pipelines of named ops; started when these are first needed, 0 for "
        "never (default: as many as workers; none without the extra `torch`).",
    )
    group.add_argument(
        "--nice",
        type=int,
        default=AgentSettings.nice,
        metavar="N",
        help="How much workers give way to other processes, from 0 to 19 (default: %(default)s).",
    )
    group.add_argument(
        "--readers",
        type=int,
        default=AgentSettings.readers,
        metavar="N",
        help="Threads that read files which cross the wire as they are (default: %(default)s).",
    )
    group.add_argument(
        "--limit-mbit",
        type=float,
        metavar="N",
        help="Send at most N Mbit/s, to show on one host what a slow wire does (default: no limit).",
    )


def _add_limits(group: _Group) -> None:
    group.add_argument(
        "--max-file-mb",
        type=int,
        default=AgentSettings.max_file_nbytes >> 20,
        metavar="N",
        help="Refuse files of more than N MiB (default: %(default)s).",
    )
    group.add_argument(
        "--max-megapixels",
        type=float,
        default=AgentSettings.max_px / 1e6,
        metavar="N",
        help="Make no image of more than N million pixels; its file is sent instead (default: %(default)g).",
    )
    group.add_argument(
        "--max-queued",
        type=int,
        default=AgentSettings.max_queued,
        metavar="N",
        help="Let at most N samples wait for a worker; beyond them files are sent instead (default: %(default)s).",
    )
    group.add_argument(
        "--job-seconds",
        type=seconds,
        default=AgentSettings.job_s,
        metavar="S",
        help="Seconds that one sample may take. Then its worker is replaced and the file sent instead "
        "(default: %(default)g).",
    )
    group.add_argument(
        "--worker-memory-mb",
        type=int,
        default=AgentSettings.worker_nbytes >> 20,
        metavar="N",
        help="MiB of memory that a worker may use on top of what all workers share (default: %(default)s).",
    )


def _add_log(group: _Group) -> None:
    group.add_argument(
        "--log-level",
        choices=log.LEVELS,
        default="info",
        help="Write lines of this level and above to standard error (default: %(default)s).",
    )
    group.add_argument(
        "--metrics",
        type=place,
        metavar="[HOST:]PORT",
        help="Answer Prometheus there, at /metrics, with the numbers of `status` (HOST: 127.0.0.1, for this host only; "
        "anyone who reaches it may read them). Needs the extra `metrics`.",
    )
    group.add_argument("--log-json", action="store_true", help="Write each line of the log as a JSON object.")
    group.add_argument(
        "--end-with-stdin",
        action="store_true",
        help="Stop when standard input is closed, so that the agent ends with the program that started it.",
    )
    group.add_argument("--links-out", action="store_true", help=argparse.SUPPRESS)  # of a loader's own agent


def _add_index_folder(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--index-folder",
        type=Path,
        metavar="FOLDER",
        help="Where the indexes of archives, tables and shards are kept (default: ~/.cache/sophon/indexes).",
    )


# --- status, index and key -------------------------------------------------------------------------------------------


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="status")
    parser.add_argument("address", help="Where the agent listens, for example tcp://fileserver:5555.")
    parser.add_argument("--json", action="store_true", help="Print JSON for programs instead of a table.")
    parser.add_argument(
        "--timeout-s",
        type=seconds,
        default=5.0,
        metavar="S",
        help="Seconds to wait for the answer (default: %(default)g).",
    )
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument(
        "--keys",
        type=Path,
        metavar="FOLDER",
        help=f"On the agent's own host: the folder given to serve --keys, out of which a key is shown (default: "
        f"{USUAL_KEYS}).",
    )
    keys.add_argument(
        "--key",
        metavar="FILE",
        help="The key to show, if the agent asks for one (default: the one that a loader on this host would use).",
    )


def _add_index(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="index")
    parser.add_argument("location", help="The archives or the bucket, as behind `serve --export NAME=`.")
    _add_index_folder(parser)


def _add_key(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    add = new_command(commands, "add", "let one more loader in", _KEY_ADD, _KEY_ADD_MORE)
    remove = new_command(commands, "remove", "stop letting a loader in", _KEY_REMOVE, _KEY_REMOVE_MORE)
    listing = new_command(commands, "list", "show who is let in", _KEY_LIST, _KEY_LIST_MORE)
    for command, name in ((add, "add"), (remove, "remove"), (listing, "list")):
        command.set_defaults(command=f"key {name}")
        if command is not listing:
            command.add_argument("name", help="A name for the key, such as that of the loader's host.")
        command.add_argument(
            "--keys", type=Path, metavar="FOLDER", help=f"The folder given to serve --keys (default: {USUAL_KEYS})."
        )
    add.add_argument(
        "--export",
        action="append",
        metavar="NAME",
        help="Let the key read this export only. May be repeated (default: all exports).",
    )
