"""How far off estimates are is learnt from as much as was seen, and not from how many windows there were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sophon_loader.auto.corrections import COMPARED_FROM_S, KNOWN_FROM_S, LOADER_S_PER_BYTE, CostCorrections
from sophon_loader.measures.counters import NO_TOTALS, Totals

REST_S = 0.0025
"""That each sample leaves to the loader, by the agent's estimate and in truth."""
OWN_S = 0.0003
"""Loader CPU seconds of a sample beside that."""


def window(samples: int, *, each_s: float = REST_S + OWN_S, compared: int = 0, rest_s: float = REST_S) -> Totals:
    """Samples that were all offloaded, of some of which the rest was measured.

    Args:
        each_s: loader CPU seconds of each, all in all.
        rest_s: of those, that decoding and ops took.
    """
    nbytes = 40_000
    return replace(
        NO_TOTALS,
        samples=samples,
        offloaded=samples,
        wire_bytes=samples * nbytes,
        loader_cpu_s=samples * (each_s + LOADER_S_PER_BYTE * nbytes),
        weighed=samples,
        weighed_rest_s=samples * REST_S,
        compared_rest_s=compared * REST_S,
        compared_loader_s=compared * rest_s,
    )


def after(windows: list[Totals], beside: CostCorrections | None = None) -> CostCorrections:
    beside = beside or CostCorrections()
    for one in windows:
        beside = beside.after(one, file_rest_s=REST_S)
    return beside


def test_a_start_is_not_believed_whole() -> None:
    """Libraries are loaded, memory is touched for the first time: 31 samples took ten times what later ones take."""
    started = after([window(31, each_s=REST_S + 10 * OWN_S)])
    assert started.loader_s < 2 * OWN_S
    assert after([window(50)], started).loader_s < 2 * OWN_S


def test_what_a_sample_takes_here_is_found() -> None:
    found = after([window(300)] * 8)
    assert found.loader_s == pytest.approx(OWN_S, rel=0.05)
    assert found.loader_per_rest == 1.0


def test_what_came_from_the_cache_is_no_file_that_the_agent_has_sent() -> None:
    sent = replace(NO_TOTALS, samples=100, wire_bytes=10**7, agent_cpu_s=0.1, upkeep_s=0.05, loader_cpu_s=0.3)
    mixed = replace(sent, samples=400, cached=300, loader_cpu_s=1.2)
    assert after([mixed]).file_s == pytest.approx(after([sent]).file_s) != 0
    assert after([replace(mixed, cached=400, wire_bytes=0, agent_cpu_s=0.0, upkeep_s=0.0)]).file_s == 0


def test_many_workers_show_as_much_in_a_moment() -> None:
    assert after([window(9 * round(KNOWN_FROM_S / REST_S))]).loader_s == pytest.approx(OWN_S, rel=0.15)


def test_a_few_samples_say_little_of_how_far_off_an_agent_is() -> None:
    few = after([window(64, compared=3, rest_s=2 * REST_S)])
    assert few.loader_per_rest < 1.1
    many = after([window(640, compared=round(4 * COMPARED_FROM_S / REST_S), rest_s=2 * REST_S)])
    assert many.loader_per_rest == pytest.approx(1.8, rel=0.05)
