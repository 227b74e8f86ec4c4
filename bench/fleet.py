"""Trainings come and go, from one to four and back to one: what does each rule for the size of the fleet cost?

    python -m bench.fleet --json fleet.json
    python -m bench.fleet --parts predicted          seconds, no agent

Four rules (bench/fleet_rules.py) get the same facts every 2 s, and return the number of agents that there should be.
Ours goes by the loaders' wishes; Cachew's and Pecan's try an agent more or fewer and compare batch times; the tf.data
service's goes by rates. Figures: seconds that trainings have stalled, agent-seconds, changes of the number, and the
cost of the first two at Pecan's prices, $4.96 an hour for a training and $0.427 for an agent. No bar.

`predicted`: a simulation (bench/fleet_simulated.py), at its length and at `--time-scale`, over seeds of its noise. With
`measured` too, the second takes the rates and the start of an agent from what is measured.

`measured`: agents and trainings in processes of their own (bench/fleet_measured.py). Pictures should be large photos:
of these, a loader with as little CPU as here makes less than half of what its training takes, so that agents are of
use. All trainings have the policy `auto` under all rules, since under no other does a loader say what it could use.
With an agent for itself a training would get 1 / `--share` times what it takes. Rates for the tf.data service's rule
are all images by CPU seconds of agents, so that what loaders make counts in its favour. The queue is the share of
batches that waited for their training. Stalls are a training's time less its steps at their full speed: also the time
to its first batch, some seconds, which no fleet would spare it.

In both, phases and what rules wait for (our minute, Cachew's 20 metrics) are multiplied by `--time-scale`. The start of
an agent is not, nor is the period of 2 s, so that a short run is harder on all rules.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from tqdm import tqdm

from bench import arguments, record
from bench.bed import why_no_quota
from bench.fleet_measured import Calibration, calibrated, measured, place
from bench.fleet_rules import RULES, score
from bench.fleet_simulated import Load, Outcome, simulated
from bench.loading import quiet

PARTS = ("predicted", "measured")
SEEDS = 20
PLAIN = Calibration(images_per_s=20.0, alone=0.0, start_s=4.0)
"""Rates simulated without measurements."""
LEAST_ADDED = 0.2
"""Share of what a training gets with an agent that is the agent's; with less, no rule has anything to size."""


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, measure, print a line per rule, write the results."""
    options = checked(parser(), argv)
    quiet()
    found: dict[str, Any] = {"left_out": {}}
    rows: list[dict[str, Any]] = []
    if "predicted" in options.parts:
        rows += [predicted(name, options, 1.0, PLAIN) for name in options.rules]
    known = PLAIN
    if "measured" in options.parts:
        if reason := why_no_quota():
            found["left_out"]["measured"] = reason
        else:
            known, later = measure(options)
            rows += later
            found["calibration"] = {name: round(value, 2) for name, value in asdict(known).items()}
            if known.adds < LEAST_ADDED * known.images_per_s:
                found["left_out"]["measured"] = "an agent adds too little to what a loader makes itself"
                known = PLAIN
    if "predicted" in options.parts:
        rows += [predicted(name, options, options.time_scale, known) for name in options.rules]
    for one in rows:
        print(line(one))
    names = ("trainings", "phases_s", "time_scale", "share", "agent_cores", "loader_cores", "rounds")
    record.write(
        options.output, {"settings": {name: getattr(options, name) for name in names}, "summary": rows, **found}
    )
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.fleet", __doc__, pictures=True)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), action=arguments.Distinct)
    what = f"Any of {', '.join(RULES)} (default: all)."
    add("--rules", nargs="+", choices=RULES, default=list(RULES), action=arguments.Distinct, metavar="RULE", help=what)
    what = "Trainings that run, phase by phase."
    add("--trainings", type=arguments.count(), nargs="+", default=[1, 4, 1], metavar="N", help=what)
    what = "Seconds of each phase, before `--time-scale`."
    add("--phases-s", type=arguments.above_zero, nargs="+", default=[60.0, 120.0, 120.0], metavar="S", help=what)
    what = "What the phases and the rules' waiting times are multiplied by."
    add("--time-scale", type=arguments.above_zero, default=0.4, help=what)
    add("--most", type=arguments.count(), default=6, help="Agents that there may be; at least one there always is.")
    what = "What a training takes, by what it gets with an agent for itself."
    add("--share", type=arguments.above_zero, default=0.95, help=what)
    add("--agent-cores", type=arguments.quota, default=0.15, help="CPU quota of an agent, in cores.")
    add("--loader-cores", type=arguments.quota, default=0.06, help="CPU quota of a training with its loader, in cores.")
    add("--rounds", type=arguments.count(), default=1)
    return parser


def checked(parser: arguments.Parser, argv: Sequence[str] | None) -> Namespace:
    """The arguments, with a length for each phase.

    Args:
        parser: of this bench.
        argv: the command line.
    """
    options = arguments.parsed(parser, argv)
    if len(options.trainings) != len(options.phases_s):
        remedy = "give a length for each number of --trainings"
        parser.refuse("--phases-s", f"{len(options.trainings)} numbers", len(options.phases_s), remedy)
    return options


def load_of(options: Namespace, scale: float, known: Calibration) -> Load:
    """Return the load that is simulated, and measured.

    Args:
        options: of the command line.
        scale: of the phases.
        known: of agents and loaders.
    """
    phases_s = [scale * length_s for length_s in options.phases_s]
    demand = options.share * known.images_per_s
    return Load(options.trainings, phases_s, demand, known.adds, known.start_s, most=options.most, alone=known.alone)


def predicted(name: str, options: Namespace, scale: float, known: Calibration) -> dict[str, Any]:
    """Return the cost of a rule by the simulation.

    Args:
        name: of the rule.
        options: of the command line.
        scale: of all lengths of time.
        known: of agents and loaders.
    """
    load = load_of(options, scale, known)
    return row("predicted", name, scale, [simulated(name, load, scale, seed) for seed in range(SEEDS)])


def measure(options: Namespace) -> tuple[Calibration, list[dict[str, Any]]]:
    """Return the rates measured before any rule, with the usual start of an agent, and a row for each rule.

    None of these where an agent adds less than `LEAST_ADDED`.

    Args:
        options: of the command line.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in options.rules}
    starts_s: list[float] = []
    quotas = options.agent_cores, options.loader_cores
    progress = tqdm(total=options.rounds * len(outcomes), desc="fleet", file=sys.stderr)
    with place(options.data, max(options.trainings), options.most, *quotas) as where, progress:
        known = calibrated(where)
        if known.adds < LEAST_ADDED * known.images_per_s:
            return known, []
        load = load_of(options, options.time_scale, known)
        for number in range(options.rounds):
            for name in record.in_turns(options.rules, number):
                outcome, starts = measured(where, name, load, options.time_scale)
                outcomes[name].append(outcome)
                starts_s += starts
                progress.update()
    rows = [row("measured", name, options.time_scale, outcomes[name]) for name in options.rules]
    return replace(known, start_s=median(starts_s)), rows


def row(part: str, name: str, scale: float, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of a rule.

    Args:
        part: of `PARTS`.
        name: of the rule.
        scale: of all lengths of time.
        outcomes: of all runs.
    """
    figures = {
        "stall_s": [one.stall_s for one in outcomes],
        "agent_s": [one.agent_s for one in outcomes],
        "changes": [float(one.changes) for one in outcomes],
        "cents": [100 * score(one.stall_s, one.agent_s) for one in outcomes],
    }
    spreads = {name: record.spread([round(value, 2) for value in values]) for name, values in figures.items()}
    return {"part": part, "rule": name, "scale": scale, "agents": outcomes[0].agents, **spreads}


def line(row: Mapping[str, Any]) -> str:
    """Return a line of the bench's output.

    Args:
        row: as by `row`.
    """
    stall, agents, changes, cents = (row[name]["median"] for name in ("stall_s", "agent_s", "changes", "cents"))
    return (
        f"{row['part']}, times {row['scale']:g}, {row['rule']}: {stall:.0f} s of stall, {agents:.0f} agent-seconds, "
        f"{changes:.0f} changes, {cents:.1f} cents; {' -> '.join(map(str, row['agents']))} agents"
    )


if __name__ == "__main__":
    sys.exit(main())
