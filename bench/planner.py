"""Seconds and memory that each policy needs to decide for a data set of ImageNet's size.

    python -m bench.planner --samples 1280000 --json planner.json

The table is synthetic: log-normal file sizes with a mean near 110 KB, crops of a fixed size, times in proportion,
and six choices per sample (file, roi-jpeg, pixels, webp, jxl, array). Three jobs, each bound by the wire without
offloading, so that no policy takes a short cut: `wire` has CPU to spare, `agent` little of it at the agent,
`tight` little on both sides (all three prices are positive, the hardest case). Each policy plans each job
--repeats times, and once more under tracemalloc for the peak of what planning holds beyond the table. `auto` sets
prices, and needs only the 2 048 samples that a loader keeps, for any data set.

A loader has no such table, but a profile of each sample, from which it makes the table block by block. The last line is
of that: what a plan of `sophon` takes beyond the profile, with calibration and table, for the job `wire`.

Bars: sophon < 1 s for 1 280 000 samples on one core and every plan < 64 bytes per sample; auto < 0.05 s, since a loader
asks every second.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench import arguments, record
from sophon_loader.auto.shared_offers import KEPT
from sophon_loader.decide import FILE, POLICIES, Choice, ChoiceTable, Facts, Plan, Policy, PricingPolicy, Rates
from sophon_loader.decide.facts import PAPER_ENCODINGS
from sophon_loader.decide.policies import policy_named
from sophon_loader.decide.policies.sophon import Sophon
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.plans.calibration import calibrated
from sophon_loader.plans.costs import CostModel
from sophon_loader.plans.shares import EXACT_SHARES

SECONDS_BARS = {"sophon": 1.0, "auto": 0.05}
BYTES_BAR = 64.0
BARS_HOLD_UP_TO = 1_280_000
CHOICES = (
    FILE,
    Choice(0, "roi-jpeg"),
    Choice(2, "pixels"),
    Choice(2, "webp"),
    Choice(2, "jxl"),
    Choice(4, "array"),
)
CROP = 224 * 224 * 3
JOBS = {
    "wire": Rates(gpu_samples_s=5000, wire_bytes_s=62.5e6, loader_cores=8, agent_cores=2),
    "agent": Rates(gpu_samples_s=5000, wire_bytes_s=62.5e6, loader_cores=8, agent_cores=0.1),
    "tight": Rates(gpu_samples_s=5000, wire_bytes_s=62.5e6, loader_cores=1.3, agent_cores=0.4),
}


MAKING = "making"
"""The job of the line that has the making of the table in it."""


@dataclass(frozen=True)
class Measured:
    """One policy's decisions for one job: best and worst of the repeats, peak bytes, and what it decided."""

    job: str
    policy: str
    samples: int
    seconds: float
    seconds_worst: float
    bytes_per_sample: float
    predicted_s: float | None
    reason: str


def synthetic_table(samples: int, seed: int) -> ChoiceTable:
    """A table of `samples` rows and the six `CHOICES`, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    size = rng.lognormal(11.35, 0.65, samples).astype(np.float32)
    decode = size * np.float32(1e-8) * rng.uniform(0.8, 1.2, samples).astype(np.float32)
    kept = rng.uniform(0.15, 1.0, samples).astype(np.float32)
    webp, jxl = (rng.normal(mean, 9e3, samples).clip(2e4).astype(np.float32) for mean in (7.0e4, 6.9e4))
    even = np.ones(samples, dtype=np.float32)
    wire = [size, size * kept, CROP * even, webp, jxl, 4 * CROP * even]
    agent = [2e-5 * even, 2.5e-9 * size, decode + 4e-4, decode + 1.8e-3, decode + 8.5e-4, decode + 9e-4]
    loader = [decode + 9e-4, decode * kept + 9e-4, 5e-4 * even, 1.25e-3 * even, 1.8e-3 * even, 1e-4 * even]
    arrays = [np.array(columns, dtype=np.float32).T for columns in (wire, agent, loader)]
    return ChoiceTable(CHOICES, *arrays)


def measure(job: str, policy: Policy | PricingPolicy, facts: Facts, repeats: int) -> Measured:
    """Decide `repeats` times for the clock and once for the memory."""
    decide = policy.tariff if isinstance(policy, PricingPolicy) else policy.plan
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        decide(facts)
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    found = decide(facts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    predicted = found.predicted.seconds if found.predicted else None
    per_sample = peak / max(1, facts.samples)
    return Measured(job, policy.name, facts.samples, min(times), max(times), per_sample, predicted, found.reason)


def synthetic_profile(samples: int, seed: int) -> SampleProfile:
    """Decode, crop, flip, to tensor: sizes like those of `synthetic_table`, and times in proportion."""
    rng = np.random.default_rng(seed)
    profile = SampleProfile(samples, 4)
    profile.nbytes[:, 0] = rng.lognormal(11.35, 0.65, samples)
    profile.nbytes[:, 1:] = (3 * 500 * 400, CROP, CROP, 4 * CROP)
    profile.op_ms[:, 0] = profile.nbytes[:, 0] * 1e-5
    profile.op_ms[:, 1:] = (0.4, 0.1, 0.4)
    profile.sides[:] = (500, 400)
    return profile


def measure_making(profile: SampleProfile, repeats: int) -> Measured:
    """A plan of `sophon` with the making of its table, as a loader comes to it."""
    rates, share = JOBS["wire"], np.linspace(0.1, 1.0, EXACT_SHARES)
    samples = len(profile.nbytes)

    def plan() -> Plan:
        calibration = calibrated(profile, [], {}, 0.0, crops_first=True)
        table = CostModel(profile, calibration, 4, PAPER_ENCODINGS).table(share)
        return Sophon().plan(Facts(samples, rates, table, max_cut=4, resize_cut=2, profiled_share=1.0))

    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        plan()
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    found = plan()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    predicted = None if found.predicted is None else found.predicted.seconds
    return Measured(MAKING, "sophon", samples, min(times), max(times), peak / samples, predicted, found.reason)


def misses(result: Measured) -> list[str]:
    """The bars that a result at full size misses, in words."""
    found = []
    bar = SECONDS_BARS.get(result.policy)
    where = f"{result.job}/{result.policy}"
    if bar is not None and result.seconds_worst >= bar and result.job != MAKING:
        found.append(f"{where} took {result.seconds_worst:.3f} s, bar {bar} s")
    if result.policy != "auto" and result.bytes_per_sample >= BYTES_BAR:
        found.append(f"{where} held {result.bytes_per_sample:.0f} bytes/sample, bar {BYTES_BAR:.0f}")
    return found


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.planner", __doc__)
    add = parser.add_argument
    add("--samples", type=arguments.count(), default=BARS_HOLD_UP_TO, help="Rows of the table, one per sample.")
    policies: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct, "metavar": "NAME"}
    add("--policies", type=arguments.policy(), default=list(POLICIES), **policies)
    add("--repeats", type=arguments.count(), default=3, help="Plans per policy that are timed.")
    add("--seed", type=arguments.count(0), default=0, help="Seed of the made-up table.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results; 1 when a bar is missed."""
    options = arguments.parsed(parser(), argv)
    table = synthetic_table(options.samples, options.seed)
    kept = synthetic_table(min(options.samples, KEPT), options.seed)
    results = []
    for job, rates in JOBS.items():
        for policy in map(policy_named, options.policies):
            costs = kept if isinstance(policy, PricingPolicy) else table
            facts = Facts(costs.samples, rates, costs, max_cut=4, resize_cut=2, profiled_share=1.0)
            results.append(measure(job, policy, facts, options.repeats))
    if "sophon" in options.policies:
        results.append(measure_making(synthetic_profile(options.samples, options.seed), options.repeats))
    print(f"{'job':<7}{'policy':<12}{'samples':>9}{'seconds':>9}{'worst':>8}{'B/sample':>10}  plan")
    for one in results:
        numbers = f"{one.samples:>9}{one.seconds:>9.3f}{one.seconds_worst:>8.3f}{one.bytes_per_sample:>10.1f}"
        print(f"{one.job:<7}{one.policy:<12}{numbers}  {one.reason}")
    missed = [text for one in results for text in misses(one)] if options.samples <= BARS_HOLD_UP_TO else []
    settings = {"seed": options.seed, "samples": options.samples, "choices": [str(choice) for choice in CHOICES]}
    settings |= {"jobs": {job: asdict(rates) for job, rates in JOBS.items()}}
    record.write(options.output, {"settings": settings, "results": [asdict(one) for one in results]})
    print("\n".join(f"MISSED: {text}" for text in missed) or "all bars kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
