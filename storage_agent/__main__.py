"""Command line: arguments -> settings -> run."""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sophon_loader import native
from sophon_loader.errors import ConfigError, SophonError
from sophon_loader.host.scraping import ScrapePort, needs_prometheus
from sophon_loader.host.system import cores_available
from sophon_loader.host.unread import quiet_when_unread
from sophon_loader.wire.announcement import Announcement
from sophon_loader.wire.entry import AgentEntry
from storage_agent.broker.broker import Broker
from storage_agent.clients.key_files import FIRST, KeyFolder
from storage_agent.command.arguments import USUAL_PORT, parser
from storage_agent.command.this_host import how_to_copy
from storage_agent.fleet.announcing import Announcer, announced_address, check_folder
from storage_agent.host import log
from storage_agent.host.agent_settings import AgentSettings, is_private
from storage_agent.host.allocator import keep_freed_memory
from storage_agent.host.checks import check_address, check_modules
from storage_agent.host.metrics import open_port
from storage_agent.stores import Exports, make_index, open_exports


@quiet_when_unread
def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `sophon-agent` and `python -m storage_agent`; returns the exit status."""
    parsed = parser().parse_args(arguments)
    try:
        return _COMMANDS[parsed.command](parsed)
    except SophonError as error:
        print(f"sophon-agent: {error}", file=sys.stderr)
        return 1


def _serve(parsed: argparse.Namespace) -> int:
    names = [name for name, _ in parsed.export]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"export name must be given once, got {twice[0]!r} twice; give each folder its own")
    if parsed.insecure and parsed.keys is not None:
        raise ConfigError("--insecure must be left out where keys are used, got --insecure and --keys; leave out one")
    unusual = parsed.insecure or is_private(parsed.bind)
    new = None
    settings = AgentSettings(
        exports=dict(parsed.export),
        bind=parsed.bind,
        keys=parsed.keys if parsed.keys is not None or unusual else KeyFolder.usual(),
        insecure=parsed.insecure,
        workers=_workers(parsed),
        readers=parsed.readers,
        ops=tuple(parsed.ops),
        op_workers=parsed.op_workers,
        limit_mbit=parsed.limit_mbit,
        max_file_nbytes=parsed.max_file_mb << 20,
        max_queued=parsed.max_queued,
        job_s=parsed.job_seconds,
        worker_nbytes=parsed.worker_memory_mb << 20,
        max_px=int(1e6 * min(parsed.max_megapixels, 1e9)),
        nice=parsed.nice,
        links_out=parsed.links_out,
        index_folder=parsed.index_folder,
        announce=parsed.announce,
        announce_as=parsed.announce_as,
        metrics=parsed.metrics,
    )
    if settings.metrics is not None:
        needs_prometheus("--metrics")
    exports = open_exports(settings)
    log.configure(parsed.log_level, as_json=parsed.log_json)
    exports.check()
    settings = replace(settings, indexed=exports.indexed())
    check_modules(settings.ops)
    check_address(settings.bind)
    if settings.announce is not None:
        check_folder(settings.announce)
    if settings.keys is not None:
        new = _see_to_keys(KeyFolder(settings.keys))
    elif not is_private(settings.bind):
        reason = "no keys are asked for: anyone who reaches this agent may read all exports"
        log.EventLog().warning("agent insecure", reason=reason)
    if not native.available and not parsed.end_with_stdin:  # the loader that holds its standard input reports it itself
        log.EventLog().warning("JPEG files are sent whole", reason=native.reason)
    if settings.ops_lacking:
        log.EventLog().info("no pipeline is run", reason=settings.ops_lacking)
    keep_freed_memory()  # before there are threads
    broker = Broker(settings, exports)
    port = None if settings.metrics is None else _metrics(settings.metrics, broker)
    announcer = None if settings.announce is None else _announcer(settings.announce, broker, settings)
    if parsed.end_with_stdin:
        _stop_when_stdin_closes()

    def ready() -> None:
        _announce(broker, settings, exports)
        if new is not None:
            print(how_to_copy(new, broker.address), file=sys.stderr)
        if announcer is not None:
            announcer.start()

    def leaving() -> None:
        if announcer is not None:
            announcer.leave()

    try:
        broker.run(ready, leaving)
    finally:
        if announcer is not None:
            announcer.close()
        if port is not None:
            port.close()
        exports.close()
    return 0


def _workers(parsed: argparse.Namespace) -> int:
    if parsed.workers is not None:
        return int(parsed.workers)
    if parsed.cpu_share is not None:
        return max(1, int(float(parsed.cpu_share) * cores_available()))
    return math.ceil(cores_available())


def _see_to_keys(keys: KeyFolder) -> Path | None:
    """Make sure that there are keys. Returns the file of the first loader's token if it was made now, else None."""
    events = log.EventLog()
    if keys.is_new and (names := keys.names()):
        keys.own()
        tokens = [str(keys.make_anew(name)) for name in names]
        reason = "the agent's own key is a new one, so earlier tokens are void"
        events.warning("tokens replaced", tokens=tokens, reason=reason, remedy="copy them to their loaders again")
    elif keys.is_new:
        keys.own()
        token = keys.add(FIRST)
        events.warning("keys created", folder=str(keys.path), token=str(token))
        return token
    if not keys.names():
        remedy = f"sophon-agent key add NAME --keys {keys.path}"
        events.warning("no client is let in", reason="there is no key", remedy=remedy)
    return None


def _announce(broker: Broker, settings: AgentSettings, exports: Exports) -> None:
    print(Announcement(broker.address, exports.describe(), settings.workers, os.getpid()).line(), flush=True)


def _announcer(folder: Path, broker: Broker, settings: AgentSettings) -> Announcer:
    try:
        address = announced_address(broker.address, settings.announce_as)
        announcer = Announcer(folder, AgentEntry([address], broker.instance, list(settings.exports)), log.EventLog())
    except SophonError:
        broker.close()
        raise
    if is_private(address):
        remedy = "give --announce-as HOST, or another --bind"
        log.EventLog().warning("agent announced for this host only", announced=address, remedy=remedy)
    return announcer


def _metrics(place: tuple[str, int], broker: Broker) -> ScrapePort:
    try:
        port = open_port(place, broker.status)
    except SophonError:
        broker.close()
        raise
    log.EventLog().info("metrics served", address=f"http://{place[0]}:{place[1]}/metrics")
    return port


def _stop_when_stdin_closes() -> None:
    """A loader that starts its own agent holds the other end of this pipe; its death ends the agent too."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), 15)

    threading.Thread(target=wait, name="watch-stdin", daemon=True).start()


def _status(parsed: argparse.Namespace) -> int:
    from storage_agent.command.status import show

    show(parsed.address, as_json=parsed.json, timeout_s=parsed.timeout_s, key=parsed.key, keys=parsed.keys)
    return 0


def _index(parsed: argparse.Namespace) -> int:
    log.configure("info", as_json=False)
    print(make_index(parsed.location, parsed.index_folder))
    return 0


def _key_add(parsed: argparse.Namespace) -> int:
    token = _keys(parsed).add(parsed.name, parsed.export)
    print(how_to_copy(token, f"tcp://*:{USUAL_PORT}", port_known=False), file=sys.stderr)
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


def _ray_start(parsed: argparse.Namespace) -> int:
    from storage_agent.fleet import ray_fleet

    if odd := [name for name, _ in parsed.export if name.split() != [name]]:
        raise ConfigError(f"export name must have no white space, got {odd[0]!r}; no loader could name it")
    arguments = [f"--export={name}={location}" for name, location in parsed.export]
    arguments += ["--insecure"] if parsed.insecure else [f"--keys={os.path.abspath(parsed.keys)}"]
    arguments += parsed.serve
    served = parser().parse_args(["serve", *arguments])  # what is wrong is said here, not by each node
    if served.bind != parser().parse_args(["serve", *arguments[:1]]).bind:
        raise ConfigError(f"--bind must be left out, got {served.bind}; write --interface NAME")
    if parsed.least is not None or parsed.most is not None:
        _check_sizes(parsed, served.announce)
    return ray_fleet.start(parsed, arguments, str(served.announce or ""))


def _check_sizes(parsed: argparse.Namespace, announce: Path | None) -> None:
    if parsed.least is None or parsed.most is None:
        given = "--min" if parsed.most is None else "--max"
        raise ConfigError(f"--min and --max must be given together, got {given} alone; add the other one")
    if parsed.least > parsed.most:
        raise ConfigError(f"--min must be at most --max, got {parsed.least} and {parsed.most}; exchange them")
    if parsed.agents is not None:
        raise ConfigError("--agents must be left out with --min and --max, got all three; leave out --agents")
    if announce is None or not announce.is_absolute():
        raise ConfigError(
            f"--min and --max need the folder in which trainings say what they could use, got {announce or 'none'}; "
            "add -- --announce FOLDER, with an absolute path that each storage node and training host has"
        )


def _ray_stop(parsed: argparse.Namespace) -> int:
    from storage_agent.fleet import ray_fleet

    return ray_fleet.stop(parsed)


def _ray_list(parsed: argparse.Namespace) -> int:
    from storage_agent.fleet import ray_fleet

    return ray_fleet.show(parsed)


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "status": _status,
    "index": _index,
    "key add": _key_add,
    "key list": _key_list,
    "key remove": _key_remove,
    "ray start": _ray_start,
    "ray stop": _ray_stop,
    "ray list": _ray_list,
}

if __name__ == "__main__":
    sys.exit(main())
