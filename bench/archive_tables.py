"""Tables of what archives cost."""

from __future__ import annotations

from typing import Any

from bench.markdown import Result, of_file, spread, table

LINES = {
    "bytes of the index per member, beside names": ("nbytes_per_member_beside_names", 1),
    "making it, us per member": ("make_us_per_member", 1),
    "private memory of the process that makes it, at most, MB": ("make_private_mb", 0),
    "private memory of the agent's broker, MB": ("broker_private_mb", 0),
    "its proportional share, MB": ("broker_pss_mb", 0),
    "its private memory after `RemoteFiles` has listed the samples, MB": ("listed_broker_private_mb", 0),
    "private memory of its worker and the worker's parent, MB": ("children_private_mb", 0),
    "listing, us per sample": ("listing_us_per_sample", 0),
}


@of_file("archives")
def archives(result: Result) -> str:
    """Images per second over archives, by those over the folder."""
    rows = [
        (
            f"{entry['link_mbit']:g} Mbit/s" if entry["link_mbit"] else "none",
            entry["policy"],
            entry["export"],
            spread(entry["samples_per_s"], 0),
            spread(entry["ratio"], 3),
        )
        for entry in result.rows["summary"]
    ]
    columns = ("limit of the wire", "policy", "export", "images/s", "of the folder's")
    return f"{result.rows['rounds']} rounds\n\n{table(columns, rows)}"


@of_file("archive-index")
def archive_index(result: Result) -> str:
    """Return a table of an index's memory and times, with few members and with many."""
    exports = result.rows["exports"]
    rows = [("start of an agent that has its index, s", *(spread(one["start_s"], 2) for one in exports))]
    rows += [(what, *(f"{one[name]:.{digits}f}" for one in exports)) for what, (name, digits) in LINES.items()]
    return table(("what", *(_members(one) for one in exports)), rows)


def _members(export: dict[str, Any]) -> str:
    several = f"{export['archives']} archives" if export["archives"] > 1 else "one archive"
    return f"{export['members']:,} members in {several}".replace(",", " ")
