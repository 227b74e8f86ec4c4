"""The tables of docs/programs.md: what ops record, who looks at pixels, and how far pipelines get without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.markdown import MISSING, Result, Results, of_file, sources, table
from bench.programs import FIGURES
from bench.recorded import taken_by
from sophon_loader.pipeline import timm_ops, torchvision_ops

FEW = 2
"""Maximum number of an op's outcomes that are listed one by one."""


def ops_of(*wanted: str) -> Callable[[Results], str]:
    """Return a function that makes a table of ops' outcomes.

    Args:
        wanted: the beginnings of where they are.
    """

    @of_file("recorded")
    def ops(result: Result) -> str:
        rows = [
            (row["where"], f"`{row['op']}`", _made(row), _looks(row))
            for row in sorted(result.rows["ops"], key=lambda row: str(row["op"]))
            if row["where"].startswith(wanted)
        ]
        return table(("in", "transform", "records", "looks at pixels by (share of draws)"), rows)

    return ops


def _made(row: dict[str, Any]) -> str:
    if row.get("refused"):
        return "takes no image, so it has no program"
    outcomes = [f"`{', '.join(steps)}`" for steps in row["made"] if steps]
    if len(outcomes) > FEW:
        outcomes = [f"`{name}`" for name in sorted({name for steps in row["made"] for name in steps})]
    return "; ".join([*outcomes, *(["nothing"] if [] in row["made"] else [])])


def _looks(row: dict[str, Any]) -> str:
    looks: dict[str, float] = row.get("looks", {})
    names = sorted({taken_by(look) for look in looks})
    share = sum(looks.values())
    return ", ".join(f"`{name}`" for name in names) + (f" {100 * share:.0f} %" if 0 < share < 0.999 else "")


@of_file("recorded")
def looks(result: Result) -> str:
    """By which of Pillow's functions pixels are looked at, and who calls these."""
    every = [(look, row["op"].partition("(")[0]) for row in result.rows["ops"] for look in row.get("looks", {})]
    rows = []
    for name in sorted({taken_by(look) for look, _ in every}):
        found = [(look, op) for look, op in every if taken_by(look) == name]
        callers = sorted({f"`{look.partition(' -> ')[0]}`" for look, _ in found if " -> " in look})
        rows.append((f"`{name}`", ", ".join(callers) or "transforms", str(len({op for _, op in found}))))
    return table(("look", "called by", "transforms"), rows)


def not_registered(results: Results) -> str:
    """Transforms that never have a program, and why."""
    if results.named("recorded") is None:
        return MISSING
    of_torchvision = {f"`{name[3:]}`": why for name, why in torchvision_ops.NOT_REGISTERED.items()}
    of_timm = {f"timm's `{name}`": why for name, why in timm_ops.NOT_REGISTERED.items()}
    return table(("transform", "why"), {**of_torchvision, **of_timm}.items())


def programs(results: Results) -> str:
    """Shares of the samples of each folder, for every pipeline."""
    found = results.each("programs")
    rows = [
        (rows[0]["title"], *(" / ".join(f"{100 * row[name]:.0f}" for row in rows) for name in FIGURES))
        for rows in zip(*(result.rows["pipelines"] for result in found), strict=True)
    ]
    if not rows:
        return MISSING
    columns = ("pipeline", "`shrunk`, %", "to the tensor, %", "part cut, %", "decoded in part, %")
    return f"{table(columns, rows)}\n\n{_folders(found)}\n\n{sources(*found)}"


def _folders(found: Sequence[Result]) -> str:
    return "Folders, in this order: " + ", ".join(f"{one.data} ({one.rows['files']} files)" for one in found) + "."


def programs_ended(results: Results) -> str:
    """Return a table of the reasons why programs end before the tensor, or have nothing to cut."""
    found = results.each("programs")
    rows = []
    for of_folders in zip(*(result.rows["pipelines"] for result in found), strict=True):
        reasons = dict.fromkeys(why for row in of_folders for why in row.get("ended", {}))
        for number, why in enumerate(reasons):
            share = " / ".join(f"{100 * row.get('ended', {}).get(why, 0):.0f}" for row in of_folders)
            rows.append(("" if number else of_folders[0]["title"], why, share))
    return table(("pipeline", "why", "of samples, %"), rows) if rows else MISSING
