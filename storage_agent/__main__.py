"""Command line: arguments -> settings -> run."""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sophon_loader import __version__, native
from sophon_loader.errors import ConfigError, SophonError
from sophon_loader.host import cores_available
from sophon_loader.wire.announcement import Announcement
from storage_agent import log
from storage_agent.broker import Broker
from storage_agent.checks import check_address, check_modules
from storage_agent.keys import FIRST, KeyFolder
from storage_agent.settings import Settings, is_private
from storage_agent.stores import Exports, open_exports
from storage_agent.this_host import how_to_copy

MEMORY = """memory:
  beside files in the making, 512 MiB of what loaders have sent and was not looked at, 256 MiB of requests without
  an answer, 512 MiB (or twice --max-file-mb) of replies that loaders have not read; who has most is hung up on

"""
EXAMPLE = """examples:
  sophon-agent serve --export imagenet=/data/imagenet --bind tcp://0.0.0.0:5555 --workers 8
  sophon-agent key add gpu-7 --export imagenet
  sophon-agent status tcp://fileserver:5555
"""
KEY_EXAMPLE = """examples:
  sophon-agent key add gpu-7                       let one more in, for all exports
  sophon-agent key add guest --export imagenet     for one
  sophon-agent key list
  sophon-agent key remove guest                    takes effect within a second; what it has open ends, too

To change a key: add one under another name, bring it to the loader, remove the old one. No agent need be restarted.
"""


_USUAL = "~/.config/sophon/agent"
_USUAL_PORT = 5555


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `sophon-agent` and `python -m storage_agent`; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except SophonError as error:
        print(f"sophon-agent: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="sophon-agent", description=__doc__, epilog=EXAMPLE, formatter_class=formatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    epilog = MEMORY + EXAMPLE
    _add_serve(commands.add_parser("serve", help="serve folders to loaders", epilog=epilog, formatter_class=formatter))
    status = commands.add_parser("status", help="show what a running agent does")
    status.add_argument("address", help="e.g. tcp://fileserver:5555")
    status.add_argument("--json", action="store_true", help="print JSON instead of a table")
    status.add_argument("--timeout-s", type=_seconds, default=5.0, metavar="S", help="default %(default)s")
    status.add_argument("--key", metavar="TOKEN", help="the path of a token's file; default: in the usual places")
    status.set_defaults(run=_status)
    _add_key(commands.add_parser("key", help="who is let in", epilog=KEY_EXAMPLE, formatter_class=formatter), formatter)
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export",
        action="append",
        required=True,
        type=_export,
        metavar="NAME=FOLDER",
        help="a folder, and the name by which loaders ask for it; may be repeated",
    )
    parser.add_argument("--bind", default="tcp://127.0.0.1:5555", help="default %(default)s; port 0 takes a free one")
    parser.add_argument(
        "--keys", type=Path, metavar="FOLDER", help=f"of keys; default: {_USUAL}, if others reach --bind"
    )
    parser.add_argument("--insecure", action="store_true", help="no keys: whoever reaches --bind may read all exports")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--workers", type=int, help="processes that run ops; default: the cores this host may use")
    amount.add_argument(
        "--cpu-share",
        type=_share,
        metavar="S",
        help="instead of --workers: as many as this share of the cores, at least one; each takes one core at most",
    )
    parser.add_argument(
        "--readers",
        type=int,
        default=Settings.readers,
        help="threads that read files which cross as they are; default %(default)s",
    )
    parser.add_argument(
        "--ops", action="append", default=[], metavar="MODULE", help="import MODULE, which calls register_op"
    )
    parser.add_argument("--limit-mbit", type=float, metavar="N", help="pace replies to N Mbit/s, for demos")
    max_file_mb = Settings.max_file_nbytes >> 20
    parser.add_argument(
        "--max-file-mb", type=int, default=max_file_mb, metavar="N", help="larger ones are refused; default %(default)s"
    )
    parser.add_argument(
        "--max-queued",
        type=int,
        default=Settings.max_queued,
        metavar="N",
        help="samples waiting for a worker above which files go out as they are; default %(default)s",
    )
    parser.add_argument(
        "--job-seconds",
        type=_seconds,
        default=Settings.job_s,
        metavar="S",
        help="for one sample; a worker that takes longer is replaced, and the file goes out; default %(default)s",
    )
    parser.add_argument(
        "--worker-memory-mb",
        type=int,
        default=Settings.worker_nbytes >> 20,
        metavar="N",
        help="that a worker may take beyond what all share; default %(default)s",
    )
    parser.add_argument(
        "--max-megapixels",
        type=float,
        default=Settings.max_px / 1e6,
        metavar="N",
        help="of an image that an op makes here; larger ones are made at the loader; default %(default)g",
    )
    parser.add_argument(
        "--nice", type=int, default=Settings.nice, metavar="N", help="of workers, 0 to 19; default %(default)s"
    )
    parser.add_argument("--end-with-stdin", action="store_true", help="stop when standard input is closed")
    parser.add_argument("--links-out", action="store_true", help=argparse.SUPPRESS)  # of a loader's own agent
    parser.add_argument(
        "--log-level", choices=log.LEVELS, default="info", help="of the lines on standard error; default %(default)s"
    )
    parser.add_argument("--log-json", action="store_true", help="write each of them as a JSON object")
    parser.set_defaults(run=_serve)


def _add_key(parser: argparse.ArgumentParser, formatter: type[argparse.HelpFormatter]) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("add", help="let one more in", epilog=KEY_EXAMPLE, formatter_class=formatter)
    add.add_argument("--export", action="append", metavar="NAME", help="that it may see, may be repeated; default: all")
    remove = commands.add_parser("remove", help="let one in no longer")
    for command in (add, remove):
        command.add_argument("name", help="of the key, the loader's host say")
    listing = commands.add_parser("list", help="name, exports and the public key of each that is let in")
    for command, run in ((add, _key_add), (remove, _key_remove), (listing, _key_list)):
        command.add_argument("--keys", type=Path, metavar="FOLDER", help=f"as of `serve`; default: {_USUAL}")
        command.set_defaults(run=run)


def _export(text: str) -> tuple[str, str]:
    name, separator, location = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"must be NAME=FOLDER, got {text!r}")
    return name, location


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be a share above 0 and at most 1, got {text!r}")
    return value


def _serve(parsed: argparse.Namespace) -> int:
    names = [name for name, _ in parsed.export]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"export name must be given once, got {twice[0]!r} twice")
    if parsed.insecure and parsed.keys is not None:
        raise ConfigError("insecure must be left out where keys are used, got --insecure and --keys")
    unusual = parsed.insecure or is_private(parsed.bind)
    new = None
    settings = Settings(
        exports=dict(parsed.export),
        bind=parsed.bind,
        keys=parsed.keys if parsed.keys is not None or unusual else KeyFolder.usual(),
        insecure=parsed.insecure,
        workers=_workers(parsed),
        readers=parsed.readers,
        ops=tuple(parsed.ops),
        limit_mbit=parsed.limit_mbit,
        max_file_nbytes=parsed.max_file_mb << 20,
        max_queued=parsed.max_queued,
        job_s=parsed.job_seconds,
        worker_nbytes=parsed.worker_memory_mb << 20,
        max_px=int(1e6 * min(parsed.max_megapixels, 1e9)),
        nice=parsed.nice,
        links_out=parsed.links_out,
    )
    exports = open_exports(settings)
    exports.check()
    check_modules(settings.ops)
    check_address(settings.bind)
    log.configure(parsed.log_level, as_json=parsed.log_json)
    if settings.keys is not None:
        new = _see_to_keys(KeyFolder(settings.keys))
    elif not is_private(settings.bind):
        log.EventLog().warning("insecure", meaning="no keys: whoever reaches this agent may read all exports")
    if not native.available and not parsed.end_with_stdin:  # who holds its standard input says so itself
        log.EventLog().warning("JPEG files cross whole", reason=native.reason)
    broker = Broker(settings, exports)
    if parsed.end_with_stdin:
        _stop_when_stdin_closes()

    def ready() -> None:
        _announce(broker, settings, exports)
        if new is not None:
            print(how_to_copy(new, broker.address), file=sys.stderr)

    broker.run(ready)
    return 0


def _workers(parsed: argparse.Namespace) -> int:
    if parsed.workers is not None:
        return int(parsed.workers)
    if parsed.cpu_share is not None:
        return max(1, int(float(parsed.cpu_share) * cores_available()))
    return math.ceil(cores_available())


def _see_to_keys(keys: KeyFolder) -> Path | None:
    """Have keys; the file with the first loader's, if it has just been made."""
    events = log.EventLog()
    if keys.is_new and (names := keys.names()):
        keys.own()
        tokens = [str(keys.make_anew(name)) for name in names]
        remedy = "the agent's own key is another, and earlier tokens are void: copy these to their loaders anew"
        events.warning("tokens made anew", tokens=tokens, remedy=remedy)
    elif keys.is_new:
        keys.own()
        token = keys.add(FIRST)
        events.warning("keys made", folder=str(keys.path), token=str(token))
        return token
    if not keys.names():
        events.warning("nobody is let in", remedy=f"sophon-agent key add NAME --keys {keys.path}")
    return None


def _announce(broker: Broker, settings: Settings, exports: Exports) -> None:
    print(Announcement(broker.address, exports.describe(), settings.workers, os.getpid()).line(), flush=True)


def _stop_when_stdin_closes() -> None:
    """A loader that starts its own agent holds the other end of this pipe; its death ends the agent too."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), 15)

    threading.Thread(target=wait, name="watch-stdin", daemon=True).start()


def _status(parsed: argparse.Namespace) -> int:
    from storage_agent.status import show

    show(parsed.address, as_json=parsed.json, timeout_s=parsed.timeout_s, key=parsed.key)
    return 0


def _key_add(parsed: argparse.Namespace) -> int:
    print(how_to_copy(_keys(parsed).add(parsed.name, parsed.export), f"tcp://*:{_USUAL_PORT}"), file=sys.stderr)
    print(f"sophon-agent: if the agent's port is not {_USUAL_PORT}, the last line ends with that one", file=sys.stderr)
    return 0


def _key_list(parsed: argparse.Namespace) -> int:
    keys = _keys(parsed)
    for name in keys.names():
        public, grant = keys.grant(name)
        exports = "all exports" if grant.exports is None else ", ".join(sorted(grant.exports))
        print(f"{name}  {exports}  {public[:16]}")
    return 0


def _key_remove(parsed: argparse.Namespace) -> int:
    _keys(parsed).remove(parsed.name)
    return 0


def _keys(parsed: argparse.Namespace) -> KeyFolder:
    return KeyFolder(parsed.keys if parsed.keys is not None else KeyFolder.usual())


if __name__ == "__main__":
    sys.exit(main())
