"""Trainings come and go, from one to four and back to one: what does each rule for the size of the fleet cost?

    python -m bench.fleet --json fleet.json
    python -m bench.fleet --parts predicted          seconds, no agent

Four rules (bench/fleet_rules.py) are told the same every 2 s, and answer how many agents there should be: ours, by what
loaders say that they could use; Cachew's and Pecan's, which try an agent more or fewer and compare batch times; the
tf.data service's, by rates. Figures: seconds that trainings have stalled, agent-seconds, changes of the number, and
what the first two cost at Pecan's prices, $4.96 an hour for a training and $0.427 for an agent. No bar.

`predicted`: a simulation (bench/fleet_simulated.py), at its length and at `--time-scale`, over seeds of its noise.

In both, phases and what rules wait for (our minute, Cachew's 20 metrics) are multiplied by `--time-scale`. The start of
an agent is not, nor is the period of 2 s, so that a short run is harder on all rules.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench import arguments, record
from bench.fleet_rules import RULES, score
from bench.fleet_simulated import Load, Outcome, simulated

PARTS = ("predicted",)
SEEDS = 20
DEMAND, CAPACITY, START_S = 18.0, 20.0, 4.0
"""Images/s of a training and of an agent, and the start of one, in the simulation."""


def main(argv: Sequence[str] | None = None) -> int:
    """Predict, measure, print a line per rule, write the results."""
    options = arguments.parsed(parser(), argv)
    if len(options.trainings) != len(options.phases_s):
        remedy = "give a length for each number"
        parser().refuse("--phases-s", f"{len(options.trainings)} numbers", len(options.phases_s), remedy)
    summary = []
    if "predicted" in options.parts:
        for scale in dict.fromkeys((1.0, options.time_scale)):
            summary += [predicted(name, options, scale) for name in options.rules]
    for row in summary:
        print(line(row))
    settings = {name: getattr(options, name) for name in ("trainings", "phases_s", "time_scale")}
    record.write(options.output, {"settings": settings, "summary": summary})
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
    add("--time-scale", type=arguments.above_zero, default=0.33, help=what)
    add("--most", type=arguments.count(), default=6, help="Agents that there may be; at least one there always is.")
    return parser


def load_of(options: Any, scale: float, demand: float, capacity: float, start_s: float) -> Load:
    """What is simulated, and measured.

    Args:
        options: of the command line.
        scale: of the phases.
        demand: images/s of a training.
        capacity: images/s of an agent.
        start_s: of an agent.
    """
    phases_s = [scale * length_s for length_s in options.phases_s]
    return Load(options.trainings, phases_s, demand, capacity, start_s, most=options.most)


def predicted(name: str, options: Any, scale: float) -> dict[str, Any]:
    """What a rule costs by the simulation.

    Args:
        name: of the rule.
        options: of the command line.
        scale: of all lengths of time.
    """
    load = load_of(options, scale, DEMAND, CAPACITY, START_S)
    return row("predicted", name, scale, [simulated(name, load, scale, seed) for seed in range(SEEDS)])


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
    """Of the bench's output.

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
