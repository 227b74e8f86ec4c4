"""`auto` with an agent that chooses: the same samples from the first request on, and through every fault.

No time is asserted: other processes may take the CPU at any moment.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.device.step_clock import VERDICT_STEPS
from sophon_loader.host.shared import SharedArray
from tests.e2e.test_other_agent import OTHER_TORCH, modules
from tests.support.agents import Agent, agent_for
from tests.support.loaders import MakeLoader, SeenIndex, samples_of, times_two
from tests.support.pictures import make_tree, picture, train_transform

FILES = 96
LOADER = {"batch_size": 8, "policy": "auto", "seed": 5}
NARROW = ("--limit-mbit", "5")
EPOCHS = 3
PATIENT = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=40.0, resend_after_s=20.0, window=8)
"""An agent that is started again is waited for."""
Samples = list[tuple[str, Any]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tree of mixed pictures and one of PNG files alone."""
    folder = tmp_path_factory.mktemp("live")
    make_tree(folder / "mixed", FILES, sides=(60, 300))
    (folder / "png" / "c").mkdir(parents=True)
    for number in range(32):
        picture(120 + number, 90, number).save(folder / "png" / "c" / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    """An agent behind a narrow wire: there is something to gain by everything that it could do."""
    with agent_for({"all": root}, *NARROW, workers=2) as running:
        yield running


@pytest.fixture
def make(make: MakeLoader, root: Path, agent: Agent) -> MakeLoader:
    """As elsewhere, for one of the trees, or a dataset of them."""

    def build(dataset: Any = None, tree: str = "mixed", **more: Any) -> OffloadingDataLoader[Any]:
        where = more.pop("agent", agent).address(f"all/{tree}".rstrip("/"))
        return make(pictures(root, tree) if dataset is None else dataset, where, **more)

    return build


def pictures(root: Path, tree: str = "mixed", transform: Any = None) -> ImageFolder:
    return ImageFolder(str(root / tree), transform or train_transform(32))


_EXPECTED: dict[Any, Samples] = {}


def expected(dataset: Any, epoch: int, key: Any) -> Samples:
    """An epoch computed on this host."""
    if (key, epoch) not in _EXPECTED:
        loader = OffloadingDataLoader(dataset, batch_size=5, policy="no-off", seed=5)
        loader.set_epoch(epoch)
        _EXPECTED[key, epoch] = samples_of(loader)
        loader.close()
    return _EXPECTED[key, epoch]


def epochs(loader: OffloadingDataLoader[Any], key: Any = "mixed", count: int = EPOCHS) -> list[dict[str, Any]]:
    """The reports of some epochs, each of which has given the samples that it must give, all with the agent's help."""
    reports = []
    for _ in range(count):
        epoch = loader._place.next_epoch
        assert samples_of(loader) == expected(loader.dataset, epoch, key)
        reports.append(loader.report().as_dict())
        assert reports[-1]["samples"] == len(loader.dataset) and reports[-1]["fallbacks"] == 0  # type: ignore[arg-type]
        assert sum(reports[-1]["choices"].values()) == len(loader.dataset)  # type: ignore[arg-type]
    return reports


# --- the same samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_samples_from_the_first_epoch_on_and_fewer_bytes(make: Any, workers: int) -> None:
    reports = epochs(make(num_workers=workers))
    assert set(reports[0]["choices"]) != {"file"}, "the agent has chosen for the first requests already"
    assert reports[0]["wire_bytes"] < reports[0]["file_bytes"]
    assert all(report["degraded"] == 0 for report in reports)
    last = reports[-1]
    assert last["predicted_seconds"] > 0 and " limits, at " in last["plan_reason"]
    assert last["limits"][last["bottleneck"]] == 1.0 and len(last["limits"]) >= 4
    assert {"loader_cores", "agent_cores"} <= set(last["rates"])


def test_the_paper_s_encodings_are_the_only_ones(make: Any) -> None:
    for report in epochs(make(encodings="paper", num_workers=1)):
        assert set(report["choices"]) <= {"file", "pixels", "array"}


@pytest.mark.parametrize("workers", [0, 2])
def test_an_op_that_the_agent_does_not_know(root: Path, make: Any, workers: int) -> None:
    """It stays at the loader, with all that are behind it; and may look at a picture's info before it."""
    crop, flip, tensor = v1.RandomResizedCrop(32, scale=(0.1, 0.3)), v1.RandomHorizontalFlip(), v1.ToTensor()
    dataset = pictures(root, transform=v1.Compose([crop, flip, tensor, times_two]))
    for report in epochs(make(dataset, num_workers=workers), key="times two"):
        assert max(report["cuts"]) <= 4 and report["degraded"] == 0
        assert any("times_two" in note for note in report["notes"])


@pytest.mark.filterwarnings("ignore:No op but decoding can run")
def test_a_pipeline_that_the_agent_cannot_begin(root: Path, make: Any) -> None:
    dataset = pictures(root, transform=v1.Compose([_grey_tensor, times_two]))
    for report in epochs(make(dataset, num_workers=1), key="unknown"):
        assert max(report["cuts"]) <= 1


def _grey_tensor(image: Any) -> torch.Tensor:
    """An op of the user's that wants the decoded image."""
    return torch.from_numpy(np.array(image.convert("L").resize((9, 9)))).float()[None]


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_are_no_jpeg(make: Any, workers: int) -> None:
    for report in epochs(make(tree="png", num_workers=workers), key="png"):
        assert "roi-jpeg" not in report["choices"]


def test_several_sources_with_pipelines_of_their_own(root: Path, make: Any) -> None:
    to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    dataset = ConcatDataset([
        pictures(root, "mixed"),
        pictures(root, "png", v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])),
        Subset(pictures(root, "mixed", v2.Compose([v2.RandomResizedCrop((32, 32)), to_tensor])), range(40)),
    ])  # fmt: skip
    order = np.random.default_rng(1).permutation(len(dataset)).tolist()
    for workers in (0, 2):
        loader = make(dataset, tree="", num_workers=workers, sampler=SeenIndex(order))
        for epoch in range(2):
            reference = OffloadingDataLoader(dataset, 16, sampler=SeenIndex(order), policy="no-off", seed=5)
            reference.set_epoch(epoch)
            assert samples_of(loader) == samples_of(reference)
        assert loader.report().as_dict()["fallbacks"] == 0


def test_with_the_tail_on_the_batch(make: Any) -> None:
    epochs(make(tail="cpu", num_workers=2))


def test_indices_that_are_met_again(root: Path, make: Any) -> None:
    """Each time with draws of its own, which the agent's choice must not mix up."""
    order = [5, 5, 7, 5, 0, 7] * 12
    found = []
    for more in ({"num_workers": 2}, {"num_workers": 0}):
        loader = make(sampler=SeenIndex(order), **more)
        found.append([samples_of(loader) for _ in range(2)])
    loader = OffloadingDataLoader(pictures(root), 4, sampler=SeenIndex(order), policy="no-off", seed=5)
    assert found[0] == found[1] == [samples_of(loader) for _ in range(2)]


# --- faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_agent_that_is_killed_and_started_again(root: Path, make: Any, workers: int) -> None:
    """What it has learnt of the pictures is lost with it, and learnt anew."""
    with agent_for({"all": root}, *NARROW, workers=2) as agent:
        loader = make(agent=agent, num_workers=workers, options=PATIENT)
        for epoch in range(2):
            batches = iter(loader)
            found = samples_of([next(batches) for _ in range(5)])
            agent.kill()
            agent.start()
            found += samples_of(batches)
            assert found == expected(loader.dataset, epoch, "mixed")
        epochs(loader, count=1)


@pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")
def test_an_agent_that_is_gone_for_good(root: Path, make: Any) -> None:
    with agent_for({"all": root}, *NARROW) as agent:
        loader = make(agent=agent, num_workers=2)
        batches = iter(loader)
        found = samples_of([next(batches) for _ in range(3)])
        agent.kill()
        found += samples_of(batches)
        assert found == expected(loader.dataset, 0, "mixed")
        assert loader.report().as_dict()["fallbacks"] > 0
        assert samples_of(loader) == expected(loader.dataset, 1, "mixed")


def test_an_agent_that_comes_back_as_other_software_runs_no_op_any_more(root: Path, make: Any, tmp_path: Path) -> None:
    with agent_for({"all": root}) as agent:
        loader = make(agent=agent, num_workers=1, batch_size=2, options=PATIENT)
        batches = iter(loader)
        found = samples_of([next(batches) for _ in range(12)])
        agent.kill()
        agent.modules = modules(tmp_path, OTHER_TORCH)
        agent.start()
        found += samples_of(batches)
        assert found == expected(loader.dataset, 0, "mixed")


def test_more_than_the_agent_can_do(root: Path, make: Any) -> None:
    """Several loaders at an agent of one worker that queues little: the rest goes out as files."""
    with agent_for({"all": root}, "--max-queued", "2") as agent:
        loaders = [make(agent=agent, num_workers=2, persistent_workers=True) for _ in range(3)]
        begun = [iter(loader) for loader in loaders]  # here: filelock 4.3 lets no two threads fork at a time
        found: list[list[Samples]] = [[] for _ in loaders]

        def run(number: int) -> None:
            found[number] = [samples_of(batches) for batches in (begun[number], loaders[number])]

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(loaders))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert found == [[expected(loaders[0].dataset, epoch, "mixed") for epoch in range(2)]] * len(loaders)
        assert all(loader.report().as_dict()["fallbacks"] == 0 for loader in loaders)


# --- the report -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_report_of_an_epoch_that_goes_on_says_what_limits(root: Path, make: Any, workers: int) -> None:
    dataset = ConcatDataset([pictures(root)] * 12)  # some seconds at this wire
    loader = make(dataset, num_workers=workers)
    told = []
    for number, _ in enumerate(loader):
        report = loader.report()
        if report.seconds > 1.5 and number >= 2 * VERDICT_STEPS:
            told.append((report.bottleneck, dict(report.limits), report.predicted_seconds))
    assert told, "the epoch was too short to say anything"
    for bottleneck, limits, predicted_s in told:
        assert bottleneck in {"gpu", "wire", "loader-cpu", "agent-cpu", "agent-disk"}
        assert next(iter(limits)) == bottleneck and limits[bottleneck] == 1.0
        assert predicted_s is not None and predicted_s > 0


def test_a_report_stays_as_it_was(make: Any) -> None:
    loader = make(num_workers=1)
    samples_of(loader)
    before = loader.report()
    kept = (dict(before.limits), dict(before.rates), before.plan_reason)
    samples_of(loader)
    assert (before.limits, before.rates, before.plan_reason) == kept


# --- nothing per sample ---------------------------------------------------------------------------------------


def test_memory_beside_the_index_does_not_grow_with_the_dataset(
    root: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, int] = {}
    fill = SharedArray._fill

    def counting(self: SharedArray, tensor: Any, values: Any) -> None:
        frame = sys._getframe(1)
        while Path(frame.f_code.co_filename).name in ("shared.py", "shared_route.py") and frame.f_back is not None:
            frame = frame.f_back
        caller = frame.f_code.co_filename
        made[caller] = made.get(caller, 0) + values.nbytes
        fill(self, tensor, values)

    monkeypatch.setattr(SharedArray, "_fill", counting)
    found = []
    for times in (1, 40):
        made.clear()
        loader = make(ConcatDataset([Subset(pictures(root), range(32))] * times), num_workers=0)
        next(iter(loader))
        engine = loader._engine
        assert engine is not None
        assert engine._steering is None and engine.run.profiler.samples.nbytes.shape[0] == 0
        beside = {Path(name).name: nbytes for name, nbytes in made.items() if "datasets" not in Path(name).parts}
        beside["contact.py"] -= 2 * times  # a byte for each folder: how far the agent reaches there, and what it knows
        found.append(beside)
    assert found[0] == found[1] and {"shared_offers.py", "counters.py"} <= set(found[0])


def test_a_policy_with_a_plan_of_its_own_goes_on_as_before(make: Any) -> None:
    loader = make(policy="sophon", num_workers=1)
    reports = epochs(loader, count=2)
    assert reports[0]["choices"] == {"file": FILES}
    assert loader._engine is not None and loader._engine.run.profiler.samples.known.all()
