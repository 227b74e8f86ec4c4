"""Random tables of costs, and the linear programme's optimum by scipy, for the tests of `decide`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from sophon_loader.decide import FILE, Choice, ChoiceTable, Facts, Prices, Rates
from sophon_loader.decide.policies import auto
from sophon_loader.decide.tariff import Tariff

Nested = Sequence[Any]
"""[samples][choices], or those of one sample."""
CHOICES = (
    FILE,
    Choice(0, "roi-jpeg"),
    Choice(2, "pixels"),
    Choice(2, "webp"),
    Choice(4, "array"),
)
WIRE_BOUND = Rates(gpu_samples_s=1e6, wire_bytes_s=60e6, loader_cores=8, agent_cores=2)
JOBS = {
    "wire": WIRE_BOUND,
    "agent": Rates(1e6, 60e6, 8, 0.1),
    "tight": Rates(1e6, 60e6, 1.3, 0.4),
    "loader-cpu": Rates(1e6, 1e9, 1, 4),
    "gpu after offloading": Rates(800, 60e6, 8, 2),
    "free wire": Rates(1e6, np.inf, 1, 1),
    "free agent": Rates(1e6, 60e6, 1, np.inf),
}


def random_table(samples: int, seed: int = 0, absent: float = 0.1) -> ChoiceTable:
    """Costs like those of photographs; a share `absent` of the choices after the first is missing."""
    rng = np.random.default_rng(seed)
    size = rng.lognormal(11.4, 0.7, samples)
    decode = size * 1e-8 * rng.uniform(0.7, 1.4, samples)
    noise = rng.uniform(0.8, 1.2, (5, samples))
    kept = rng.uniform(0.1, 1.0, samples)
    even = np.ones(samples)
    wire = np.array([size, size * kept, 150_528 * even, 7e4 * noise[0], 602_112 * even])
    agent = np.array([2e-5 * even, 3e-9 * size, decode + 4e-4, decode + 2e-3 * noise[1], decode + 9e-4])
    loader = np.array([decode + 9e-4, decode * kept + 9e-4, 5e-4 * noise[2], 1.2e-3 * noise[3], 1e-4 * noise[4]])
    wire[1:][rng.random((4, samples)) < absent] = np.inf
    wire32, agent32, loader32 = (array.astype(np.float32).T for array in (wire, agent, loader))
    return ChoiceTable(CHOICES, wire32, agent32, loader32)


def table_of(
    wire: Nested, agent: Nested, loader: Nested | None = None, choices: Sequence[Choice] = CHOICES
) -> ChoiceTable:
    """A table from nested lists [samples][choices]; without `loader`, the loader's work is free."""
    wire_bytes, agent_s = (np.atleast_2d(np.array(values, dtype=np.float32)) for values in (wire, agent))
    loader_s = np.zeros_like(wire_bytes) if loader is None else np.array(loader, dtype=np.float32)
    return ChoiceTable(tuple(choices[: wire_bytes.shape[1]]), wire_bytes, agent_s, loader_s)


def facts_of(table: ChoiceTable, rates: Rates = WIRE_BOUND, **others: Any) -> Facts:
    """Facts for a pipeline of four stages whose second op crops."""
    known = {"max_cut": 4, "resize_cut": 2, "profiled_share": 1.0} | others
    return Facts(samples=table.samples, rates=rates, table=table, **known)


def taken(table: ChoiceTable, prices: Prices | None) -> NDArray[np.uint8]:
    """What each sample is sent as: what an agent finds cheapest at these prices (of equal ones the first), or files."""
    if prices is None:
        return np.zeros(table.samples, np.uint8)
    there = np.isfinite(table.wire_bytes)
    bill = prices.wire * np.where(there, table.wire_bytes, 0).astype(np.float64)
    bill += prices.loader * table.loader_s.astype(np.float64) + prices.agent * table.agent_s.astype(np.float64)
    return np.where(there, bill, np.inf).argmin(axis=1).astype(np.uint8)


def linear_optimum(table: ChoiceTable, rates: Rates) -> float:
    """The least epoch seconds when samples may be split over choices, by HiGHS."""
    samples, width = table.wire_bytes.shape
    there = np.isfinite(table.wire_bytes).ravel()
    rows = [
        np.where(there, np.nan_to_num(values.ravel().astype(np.float64), posinf=0.0), 0.0) / rate
        for values, rate in (
            (table.wire_bytes, rates.wire_bytes_s),
            (table.loader_s, rates.loader_cores),
            (table.agent_s, rates.agent_cores),
        )
    ]
    scale = max(row.sum() for row in rows) or 1.0
    terms = hstack([vstack([csr_array(row[None, :] / scale) for row in rows]), csr_array(-np.ones((3, 1)))])
    once = hstack([kron(eye_array(samples), np.ones((1, width))), csr_array((samples, 1))])
    cost = np.zeros(samples * width + 1)
    cost[-1] = 1
    bounds = [(0, None if here else 0) for here in there]
    bounds.append((samples / rates.gpu_samples_s / scale, None))
    found = linprog(cost, terms.tocsr(), np.zeros(3), once.tocsr(), np.ones(samples), bounds, method="highs")
    assert found.status == 0, found.message
    return float(found.x[-1] * scale)


def full_tariff(facts: Facts, slack: float = 0.01) -> Tariff:
    """The tariff of `auto` if no time may be given for less work: the linear programme is what it is held to."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(auto, "SPARE", 1.0)
        return auto.Auto(slack).tariff(facts)
