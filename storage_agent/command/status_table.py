"""Table of an agent's numbers for people: plain words, human units, no empty rows.

`sophon-agent status --json` has the same values under their own names. A newer agent may have more of them; they are
last, under these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sophon_loader.figures import counted, duration, number, size
from sophon_loader.wire.messages import AT_WORK, Failed, Failure

_Values = Mapping[str, Any]
_REFUSED = {
    Failure.VERSION: "loaders of another version",
    Failure.MALFORMED: "messages that are not of the protocol",
    Failure.CORRUPT: "messages damaged on the way",
    Failure.TOO_LONG: "messages over a limit",
    Failure.UNKNOWN_EXPORT: "exports that are not served",
    Failure.UNKNOWN_PIPELINE: "pipelines to be registered first",
    Failure.BAD_PIPELINE: "pipelines that cannot be run here",
    Failure.BAD_PROGRAM: "programs that cannot be run on their files",
    Failure.BUSY: "more than may be asked at once",
    Failure.STOPPING: "requests while the agent stops",
    Failure.MISSING: "files that do not exist",
    Failure.OUTSIDE_EXPORT: "files outside their export",
    Failure.UNREADABLE: "files that cannot be read",
}


@dataclass(frozen=True)
class _Row:
    """A row of the table.

    Args:
        label: its first cell.
        names: of the values in this row; it is left out if the first is missing.
        text: makes the second cell; "" leaves the row out.
    """

    label: str
    names: Sequence[str]
    text: Callable[[_Values], str]


def rows_of(values: _Values) -> list[tuple[str, str]]:
    """Return the rows of the table: what is served, who is connected, what is done, what went wrong, with what.

    Args:
        values: the agent's numbers about itself.
    """
    told = [(row.label, _text(row, values)) for row in _ROWS if row.names[0] in values]
    others = [(name.replace("_", " "), str(value)) for name, value in values.items() if name not in NAMES]
    return [(label, text) for label, text in (*told, *others) if text]


def _text(row: _Row, values: _Values) -> str:
    try:
        return row.text(values)
    except (AttributeError, TypeError, ValueError):  # an agent of another version may mean something else by a name
        return str(values[row.names[0]])


# --- cells ----------------------------------------------------------------------------------------------------


def _running(values: _Values) -> str:
    known = [f"{word} {values[name]}" for word, name in (("version", "version"), ("process", "pid")) if name in values]
    return f"{duration(values['uptime_s'])} ({', '.join(known)})" if known else duration(values["uptime_s"])


def _who(values: _Values) -> str:
    return "loaders with a key" if values["keys"] else "everybody who reaches this address (no keys)"


def _loaders(values: _Values) -> str:
    return counted(values["loaders"], "connection") if values["loaders"] else "none is connected"


def _workers(values: _Values) -> str:
    ready, pids = values["workers"], values.get("worker_pids", [])
    cores = f", on {counted(values['cores'], 'core')}" if "cores" in values else ""
    processes = f"\nprocess{'' if len(pids) == 1 else 'es'} {', '.join(map(str, pids))}" if pids else ""
    return f"{ready} of {len(pids)} ready{cores}{processes}" if pids else f"{ready} ready{cores}"


def _op_workers(values: _Values) -> str:
    if values["op_workers_lacking"]:
        return f"none: {values['op_workers_lacking']}"
    ready, pids, most = values["op_workers"], values["op_worker_pids"], values["op_workers_at_most"]
    if not pids:
        return f"up to {most}, started when first needed"
    return f"{ready} of {len(pids)} ready\nprocess{'' if len(pids) == 1 else 'es'} {', '.join(map(str, pids))}"


def _in_hand(values: _Values) -> str:
    if not values["outstanding"]:
        return "nothing"
    of = f" of {counted(values['clients'], 'connection')}" if values.get("clients") else ""
    queued = f", {values['queued']:,} waiting for a worker" if values.get("queued") else ""
    return f"{counted(values['outstanding'], 'request')}{of}{queued}"


def _answered(values: _Values) -> str:
    by_encoding = {kind: count for kind, count in values["answers"].items() if kind != Failed.__name__}
    if not by_encoding:
        return "none yet"
    how = ", ".join(f"{count:,} as {kind}" for kind, count in _most_first(by_encoding))
    return how if len(by_encoding) == 1 else f"{sum(by_encoding.values()):,}: {how}"


def _unread(name: str) -> Callable[[_Values], str]:
    return lambda values: size(1e6 * values[name]) if values[name] >= 0.01 else ""


def _limit(values: _Values) -> str:
    return f"{values['limit_mbit']:g} Mbit/s" if values["limit_mbit"] is not None else ""


def _refused(values: _Values) -> str:
    lines = [f"{count:,}: {_REFUSED.get(word, word)}" for word, count in _most_first(values["refusals"])]
    return "\n".join(lines)


def _number(name: str) -> Callable[[_Values], str]:
    return lambda values: number(values[name]) if values[name] else ""


def _seconds(name: str) -> Callable[[_Values], str]:
    return lambda values: duration(values[name]) if values[name] else ""


def _turned_away(values: _Values) -> str:
    count = values["keys_refused"]
    return counted(count, "connection without a valid key", "connections without a valid key") if count else ""


def _lines(name: str) -> Callable[[_Values], str]:
    return lambda values: "\n".join(f"{key}: {value}" for key, value in values[name].items())


def _software(values: _Values) -> str:
    return ", ".join(f"{name} {version}" for name, version in values["software"].items())


_ROWS = (
    _Row("serves", ["exports"], _lines("exports")),
    _Row("lets in", ["keys"], _who),
    _Row("running for", ["uptime_s", "version", "pid"], _running),
    _Row("loaders", ["loaders"], _loaders),
    _Row("workers", ["workers", "worker_pids", "cores"], _workers),
    _Row("op workers", ["op_workers_lacking", "op_workers", "op_worker_pids", "op_workers_at_most"], _op_workers),
    _Row("in hand", ["outstanding", "clients", "queued"], _in_hand),
    _Row("pipelines known", ["pipelines"], _number("pipelines")),
    _Row("samples answered", ["answers"], _answered),
    _Row("sent", ["sent_mb"], lambda values: size(1e6 * values["sent_mb"]) if values["sent_mb"] else ""),
    _Row("CPU time spent", ["cpu_s"], _seconds("cpu_s")),
    _Row("CPU time for buckets", ["store_cpu_s"], _seconds("store_cpu_s")),
    _Row("buckets away", ["stores_away"], _number("stores_away")),
    _Row("buckets asked for less", ["store_slow_downs"], _number("store_slow_downs")),
    _Row("sends at most", ["limit_mbit"], _limit),
    _Row("requests not read yet", ["unread_requests_mb"], _unread("unread_requests_mb")),
    _Row("replies not read yet", ["unread_replies_mb"], _unread("unread_replies_mb")),
    _Row("refused", ["refusals"], _refused),
    _Row("refused at the door", ["keys_refused"], _turned_away),
    _Row("workers that died", ["worker_deaths"], _number("worker_deaths")),
    _Row("connections closed", ["hung_up"], _number("hung_up")),
    _Row("replies dropped", ["dropped_replies"], _number("dropped_replies")),
    _Row("encodings", ["encodings"], lambda values: ", ".join(values["encodings"])),
    _Row("encodings lacking", ["encodings_missing"], _lines("encodings_missing")),
    _Row("software", ["software"], _software),
)
NAMES = frozenset(name for row in _ROWS for name in row.names) | {"instance", AT_WORK}
"""Names in the table, or left to `--json`: an agent's `instance` is a word that no other run has."""


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
