"""Tables of what buckets and a cache cost and bring."""

from __future__ import annotations

from typing import Any

from bench.markdown import MISSING, Result, Results, of_file, sources, spread, table

_CACHE_LINES = {
    "first_epoch_s": "seconds of the first epoch, by those without",
    "later_payload": "bytes of samples from the second epoch on, by those without",
    "payload": "bytes of samples of all epochs, by those without",
    "seconds": "seconds of all epochs, by those without",
    "local_rate": "images/s from the second epoch on, by torch's on the files themselves",
}
_CACHE_PARTS = {"all": "`no-off`, room for all", "half": "`no-off`, room for half", "auto": "`auto`, room for all"}


@of_file("buckets")
def buckets(result: Result) -> str:
    """Images per second over a bucket, by those over the folder."""
    rows = [
        (one["store"], one["policy"], spread(one["samples_per_s"], 0), spread(one["ratio"], 3))
        for one in result.rows["summary"]
    ]
    columns = ("round trip to the store", "policy", "images/s", "of the folder's")
    return f"{result.rows['rounds']} rounds\n\n{table(columns, rows)}"


def streams(results: Results) -> str:
    """Gets per second, what one costs, and memory."""
    result = results.named("buckets")
    if result is None or "streams" not in result.rows:
        return MISSING
    rows = [
        (f"whole files to one connection, store {one['store']} away", f"{one['gets_per_s']:.0f} gets/s, "
         f"{one['agent_ms_per_get']:.2f} ms of the agent's CPU each")
        for one in result.rows["streams"]
    ]  # fmt: skip
    rows += [
        (f"memory (PSS) of the agent's processes, at most, {one['connections']} connections at once",
         f"{one['pss_mb']:.0f} MB")
        for one in result.rows["memory"]
    ]  # fmt: skip
    return table(("what", "figure"), rows)


def cache(results: Results) -> str:
    """Return a table of a cache's gains and costs, relative to the same loader without one."""
    found = [one for one in (results.named("cache"), results.named("cache-30")) if one is not None]
    parts: list[dict[str, Any]] = [part for one in found for part in one.rows["summary"]]
    if not parts:
        return MISSING
    rows = [
        (_CACHE_PARTS[part["part"]], str(part["epochs"]), what, spread(part[name], 3))
        for part in parts
        for name, what in _CACHE_LINES.items()
        if name in part
    ]
    return f"{table(('case', 'epochs', 'what', 'ratio'), rows)}\n\n{sources(*found)}"
