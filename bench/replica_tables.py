"""Tables of what several agents with the same files bring."""

from __future__ import annotations

from bench.markdown import MISSING, Result, Results, of_file, spread, table


@of_file("replicas")
def replicas(result: Result) -> str:
    """Images per second with several agents, by the sum of what each would deliver."""
    settings = result.rows["settings"]
    limits = {"wire": f"{settings['link_mbit']:g} Mbit/s", "cpu": f"{settings['agent_cores']:g} cores"}
    rows = [
        (
            limits[entry["case"]],
            entry["policy"],
            entry["agents"],
            spread(entry["one_images_per_s"], 0),
            spread(entry["images_per_s"], 0),
            f"{spread(entry['of_the_sum'], 3)} (bar {entry['bar']:g})",
        )
        for entry in result.rows["summary"]
    ]
    columns = ("an agent has", "policy", "agents", "images/s of one", "images/s", "of the sum")
    missing = [f"`{name}` was left out: {reason}." for name, reason in result.rows["left_out"].items()]
    return "\n\n".join([f"{result.rows['rounds']} rounds", table(columns, rows), *missing])


def workers(results: Results) -> str:
    """Descriptors, threads and memory of a loader's worker."""
    result = results.named("replicas")
    if result is None or "workers" not in result.rows:
        return MISSING
    rows = [
        (str(one["agents"]), str(one["descriptors"]), str(one["threads"]), f"{one['pss_mb']:.0f}",
         f"{one['private_mb']:.0f}")
        for one in result.rows["workers"]
    ]  # fmt: skip
    return table(("agents", "descriptors", "threads", "PSS, MB", "private, MB"), rows)


@of_file("fleet")
def fleet(result: Result) -> str:
    """Return a table of the costs of each rule for the size of a fleet, predicted and measured."""
    settings = result.rows["settings"]
    rows = [
        (
            f"{entry['part']}, {_length(settings['phases_s'], entry['scale'])}",
            entry["rule"],
            *(spread(entry[name], 0) for name in ("stall_s", "agent_s", "changes")),
            spread(entry["cents"], 1),
            " -> ".join(map(str, entry["agents"])),
        )
        for entry in result.rows["summary"]
    ]
    columns = ("how", "rule", "stalls, s", "agent-seconds", "changes", "cents", "agents")
    missing = [f"`{name}` was left out: {reason}." for name, reason in result.rows["left_out"].items()]
    return "\n\n".join([table(columns, rows), *missing])


def _length(phases_s: list[float], scale: float) -> str:
    return f"{scale * sum(phases_s):.0f} s"
