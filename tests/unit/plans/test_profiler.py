"""The profiler in the main process: what it measures and learns, has the agent try, hands to a policy, and keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import transforms as v1

from sophon_loader.client.address import Address
from sophon_loader.decide.facts import FILE
from sophon_loader.decide.policies import Sophon
from sophon_loader.decide.words import resource
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import AgentUnreachable
from sophon_loader.figures import per_second
from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.plans import profiler as module
from sophon_loader.plans.probes import ProbeRequest
from sophon_loader.plans.profiler import Profiler
from sophon_loader.plans.rates import EpochMeasure
from tests.support.loaders import times_two
from tests.support.pictures import make_tree
from tests.support.profiles import crop_transform, fill, profiler_of

COUNT = 6
Asked = Callable[[Profiler], list[ProbeRequest]]
needs_crop = pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", COUNT, classes=2, sides=(24, 32), plain=True)


def epoch(**changes: Any) -> EpochMeasure:
    values = {"seconds": 10.0, "samples": COUNT, "wire_bytes": 30e3, "loader_cpu_s": 0.06, "agent_cpu_s": 0.01}
    return EpochMeasure(**(values | {"gpu_samples_s": 100.0, "waiting": 0.9, "queueing": 0.0} | changes))


# --- two stages -----------------------------------------------------------------------------------------------

FIRST = replace(NO_TOTALS, samples=10, file_bytes=30_000, loader_cpu_s=0.1)  # 100/s of one core


@pytest.fixture
def bursts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What bursts of files find, bytes/s."""
    found = [30e6]
    monkeypatch.setattr(
        Profiler, "measure_wire", lambda self: setattr(self, "learnt", self.learnt.after_burst(found[0]))
    )
    monkeypatch.setattr(Profiler, "start_probing", lambda self: None)
    return found


@pytest.mark.parametrize(("wire_bytes_s", "limits"), [(30e3, "io"), (30e6, "cpu")])
def test_samples_are_measured_only_if_the_first_steps_say_that_io_limits(
    root: Path, bursts: list[float], wire_bytes_s: float, limits: str
) -> None:
    bursts[0] = wire_bytes_s
    profiler = profiler_of(root, stage_one_steps=3)
    profiler.make_ready()
    assert profiler.in_stage_one and not profiler.samples.recording
    assert [profiler.first_steps(FIRST) for _ in range(2)] == ["", ""]
    said = profiler.first_steps(FIRST)
    assert said.startswith(f"stage 1: {resource(limits)} limits ({per_second(wire_bytes_s / 3000)} by the network, ")
    assert profiler.samples.recording is (limits == "io") and not profiler.in_stage_one
    profiler.make_ready()
    assert profiler.in_stage_one is (limits != "io"), "another epoch may show another limit"


def test_without_stages_samples_are_measured_at_once(root: Path, bursts: list[float]) -> None:
    profiler = profiler_of(root)
    profiler.make_ready()
    assert profiler.samples.recording and not profiler.in_stage_one and not profiler.knows_wire


def test_a_whole_profile_needs_no_first_stage(root: Path, bursts: list[float]) -> None:
    profiler = profiler_of(root, stage_one_steps=3)
    fill(profiler)
    profiler.make_ready()
    assert not profiler.in_stage_one and profiler.knows_wire


def test_throughput_is_that_of_a_pass_without_offloading(root: Path, bursts: list[float]) -> None:
    profiler = profiler_of(root)
    assert set(profiler.throughput(FIRST, measured=False)) == {"cpu"}
    found = profiler.throughput(FIRST, measured=True)
    assert found["io"] == pytest.approx(10_000) and found["cpu"] == pytest.approx(100 * profiler.rates.loader_cores)
    assert profiler.throughput(replace(FIRST, offloaded=5, loader_cpu_s=0.01), measured=False) == found
    assert profiler_of(root).throughput(NO_TOTALS, measured=False) == {}


# --- learning -------------------------------------------------------------------------------------------------


def test_at_first_nothing_is_known(root: Path) -> None:
    profiler = profiler_of(root)
    assert profiler.samples.recording
    assert profiler.table(0) is None
    facts = profiler.facts(None)
    assert (facts.samples, facts.max_cut, facts.resize_cut, facts.profiled_share) == (COUNT, 4, 2, 0.0)
    assert math.isinf(facts.rates.gpu_samples_s) and math.isinf(facts.rates.wire_bytes_s)
    assert facts.rates.agent_cores == 1.0 and 0 < facts.rates.loader_cores <= 1.0


def test_steps_of_a_running_epoch_tell_the_gpus_rate(root: Path) -> None:
    """A policy that tries plans out asks in the middle of a long first epoch."""
    profiler = profiler_of(root)
    for _ in range(5):
        profiler.clock.step_starts()
        profiler.clock.step_ends(8)
    assert profiler.facts(None).rates.gpu_samples_s == profiler.clock.samples_s < math.inf


def test_an_epoch_without_offloading_teaches_everything(root: Path) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    profiler.learn(epoch())
    assert not profiler.samples.recording
    assert profiler.rates.wire_bytes_s == pytest.approx(3000)
    assert profiler.rates.gpu_samples_s == 100
    assert profiler.calibration.overhead_s == pytest.approx(0.01 - 4 * 0.0015, rel=1e-2)
    table = profiler.table(1)
    assert table is not None and table.samples == COUNT
    assert profiler.facts(table).profiled_share == 1.0


def test_half_an_epoch_is_half_a_profile(root: Path) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    profiler.samples.nbytes[3:] = 0
    profiler.learn(epoch(samples=3))
    assert profiler.samples.recording, "the rest is measured next time"
    table = profiler.table(1)
    assert table is not None and profiler.facts(table).profiled_share == 0.5
    assert table.has(1).tolist() == [True] * 3 + [False] * 3
    assert "only 50 % of the samples are profiled" in Sophon().plan(profiler.facts(table)).reason


TOTALS = replace(
    NO_TOTALS,
    samples=100,
    wire_bytes=5_000_000,
    loader_cpu_s=4.0,
    agent_cpu_s=3.0,
    waited_s=6.0,
    offloaded=60,
    queued_s=2.0,
    turnaround_s=8.0,
    upkeep_s=0.2,
    offloaded_upkeep_s=0.12,
)


def test_an_epoch_as_its_workers_have_counted_it(root: Path) -> None:
    measure = profiler_of(root).epoch_measure(TOTALS, seconds=5.0, processes=2)
    assert (measure.seconds, measure.samples, measure.wire_bytes) == (5.0, 100, 5e6)
    assert (measure.loader_cpu_s, measure.agent_cpu_s, measure.offloaded) == (4.0, 3.0, 60)
    assert measure.waiting == pytest.approx(0.6), "of two processes in 5 seconds"
    assert measure.queueing == pytest.approx(0.25)
    assert measure.upkeep_s == pytest.approx((0.002, 0.002))
    assert math.isinf(measure.gpu_samples_s), "no step was seen"


@pytest.mark.parametrize(
    ("changes", "upkeep_s"),
    [
        ({"offloaded": 90}, (0.0, 0.12 / 90)),  # ten files are too few for a mean
        ({"offloaded": 10}, (0.08 / 90, 0.0)),
        ({"fallbacks": 30}, (0.0, 0.002)),  # those were read here
        ({"samples": 0, "offloaded": 0}, (0.0, 0.0)),
    ],
)
def test_upkeep_is_a_mean_of_enough_samples(root: Path, changes: dict[str, int], upkeep_s: tuple[float, float]) -> None:
    measure = profiler_of(root).epoch_measure(replace(TOTALS, **changes), seconds=5.0, processes=2)  # type: ignore[arg-type]
    assert measure.upkeep_s == pytest.approx(upkeep_s)


def test_an_epoch_of_nothing(root: Path) -> None:
    measure = profiler_of(root).epoch_measure(NO_TOTALS, seconds=0.0, processes=1)
    assert (measure.waiting, measure.queueing, measure.upkeep_s) == (0.0, 0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"waited_s": 9.0, "queued_s": 0.0}, "wire"),
        ({"waited_s": 9.0, "queued_s": 7.9}, "agent-cpu"),
        ({"waited_s": 0.0}, "loader-cpu"),
        ({"waited_s": 9.0, "starved_s": 8.9}, "loader-cpu"),
    ],
)
def test_the_bottleneck_of_an_epoch(root: Path, changes: dict[str, float], name: str) -> None:
    """From what workers count to what the report says; one process, with a core at either end."""
    profiler = profiler_of(root)
    measure = profiler.epoch_measure(replace(TOTALS, **changes), seconds=10.0, processes=1)  # type: ignore[arg-type]
    profiler.learn(measure)
    assert measure.bottleneck(profiler.rates) == name


# --- what the agent is asked to try ---------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What a profiler has the agent try; nobody is asked."""

    class NoProber:
        def __init__(self, address: Address, requests: list[ProbeRequest], seed: int, timeout_s: float) -> None:
            self.requests = requests

        def start(self) -> None:
            seen.extend(self.requests)

    def ask(profiler: Profiler) -> list[ProbeRequest]:
        profiler.start_probing()
        return seen

    seen: list[ProbeRequest] = []
    monkeypatch.setattr(module, "Prober", NoProber)
    return ask


OF_FILES = {(0, "roi-jpeg"), (0, "lepton"), (0, "roi-lepton")}
AT_2 = {(2, "webp"), (2, "htj2k"), (2, "jpegls"), (2, "jxl")}


def offered(tried: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """What is tried on a host that may lack some of it."""
    return {(cut, name) for cut, name in tried if name in encoding_names()}


@needs_crop
def test_what_is_tried_is_all_ops_and_what_cannot_be_told_otherwise(root: Path, asked: Asked) -> None:
    requests = asked(profiler_of(root))
    tried = {(request.cut, request.encoding) for request in requests}
    assert tried == offered({(4, "pixels"), *OF_FILES} | AT_2)
    assert {request.index for request in requests} == set(range(COUNT))
    assert {request.key for request in requests} == {f"class_{n % 2}/{n:03}.jpg" for n in range(COUNT)}


@pytest.mark.parametrize(
    ("transform", "reach", "tried"),
    [
        (v1.Compose([v1.Resize(20), v1.ToTensor()]), None, {(3, "pixels"), (0, "lepton")} | AT_2),
        (v1.Compose([v1.ColorJitter(0.2), v1.ToTensor()]), None, {(3, "pixels"), (0, "lepton")}),
        (v1.Compose([v1.CenterCrop(9), v1.ToTensor(), times_two]), None, {(3, "pixels"), *OF_FILES} | AT_2),
        (crop_transform(), (1,), {(1, "pixels"), *OF_FILES}),
        (crop_transform(), (0,), OF_FILES),
    ],
)  # fmt: skip
def test_other_pipelines(root: Path, asked: Asked, transform: Any, reach: Any, tried: set[Any]) -> None:
    more = {} if reach is None else {"reach": reach}
    profiler = profiler_of(root, transforms=(transform,), **more)
    found = {(request.cut, request.encoding) for request in asked(profiler)}
    assert found == offered(tried)


def test_what_the_agent_does_not_offer_is_not_tried(root: Path, asked: Asked) -> None:
    requests = asked(profiler_of(root, encodings=("file", "pixels", "array")))
    assert {request.encoding for request in requests} == {"pixels"}


def test_an_agent_that_is_gone_leaves_the_wire_unmeasured(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offloading is a hint: an epoch begins whether or not the agent answers."""

    def nobody(*arguments: Any) -> float:
        raise AgentUnreachable("nobody there")

    monkeypatch.setattr(module, "measure_wire", nobody)
    profiler = profiler_of(root)
    fill(profiler)
    profiler.measure_wire()
    assert math.isinf(profiler.rates.wire_bytes_s) and not profiler.knows_wire


def test_a_burst_over_the_wire(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_wire", lambda *arguments: 1e6)
    profiler = profiler_of(root)
    assert not profiler.knows_wire
    profiler.measure_wire()
    assert profiler.knows_wire and profiler.rates.wire_bytes_s == 1e6


# --- keeping --------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.npz"


@pytest.fixture
def kept(root: Path, path: Path) -> Profiler:
    """A profiler that has measured everything and saved it."""
    profiler = profiler_of(root, path)
    assert profiler.notes == (f"measuring anew: there is no profile at {path} yet",)
    fill(profiler)
    profiler.learn(epoch())
    assert path.exists()
    return profiler


def test_a_profile_is_taken_up_again(root: Path, path: Path, kept: Profiler) -> None:
    again = profiler_of(root, path)
    assert again.notes == (f"reusing the profile at {path}",)
    assert not again.samples.recording
    assert again.rates.wire_bytes_s == pytest.approx(3000)
    assert kept.rates.gpu_samples_s == 100 and math.isinf(again.rates.gpu_samples_s), "of what may be another model"
    assert again.calibration == kept.calibration
    for ours, theirs in zip(_numbers(again), _numbers(kept), strict=True):
        assert np.array_equal(ours, theirs)


def _numbers(profiler: Profiler) -> list[Any]:
    table = profiler.table(3)
    assert table is not None
    return [table.wire_bytes, table.agent_s, table.loader_s]


def test_the_port_of_a_local_agent_does_not_matter(root: Path, path: Path, kept: Profiler) -> None:
    assert profiler_of(root, path, port=2).notes == (f"reusing the profile at {path}",)


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ((crop_transform(17),), "another pipeline"),
        ((v1.Compose([v1.RandomResizedCrop(16), times_two]),), "another pipeline"),
        ((None, None), "another dataset and pipeline"),
    ],
)
def test_a_profile_of_something_else_is_not(
    root: Path, path: Path, kept: Profiler, transforms: Any, words: str
) -> None:
    other = profiler_of(root, path, transforms)
    assert other.notes == (f"measuring anew: the profile at {path} is of {words}",)
    assert other.samples.recording and not other.samples.known.any()


def test_a_file_more_is_another_dataset(root: Path, path: Path, kept: Profiler) -> None:
    make_tree(root, COUNT + 1, classes=2, sides=(24, 32), plain=True)
    assert "another dataset" in profiler_of(root, path).notes[0]


def test_an_incomplete_profile_is_completed(root: Path, path: Path) -> None:
    profiler = profiler_of(root, path)
    fill(profiler)
    profiler.samples.nbytes[4:] = 0
    profiler.learn(epoch())
    again = profiler_of(root, path)
    assert again.samples.recording and again.samples.known.sum() == 4
    fill(again)
    again.learn(epoch())
    assert profiler_of(root, path).samples.coverage == 1.0


def test_a_profile_that_cannot_be_written_costs_nothing_but_itself(root: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    path = blocked / "p.npz"
    profiler = profiler_of(root, path)
    fill(profiler)
    profiler.learn(epoch())
    assert profiler.table(1) is not None
    assert any(f"cannot save the profile at {path}" in note for note in profiler.notes)


def test_without_an_agent_nothing_is_kept(root: Path, tmp_path: Path) -> None:
    with_one = profiler_of(root)
    profiler = Profiler(with_one._data, with_one.pipelines.chains, None, 1, tmp_path / "p")
    profiler.learn(epoch())
    profiler.measure_wire()
    profiler.start_probing()
    assert not profiler.samples.recording and not (tmp_path / "p").exists()
    assert profiler.model().choices == (FILE,)
