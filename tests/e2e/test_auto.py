"""Policies that measure, against real agent processes: the same samples, fewer bytes, and reports that say why.

No time is asserted, and no ratio of times closely: other processes may take the CPU at any moment.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from examples.pictures import make_pictures
from sophon_loader import LocalAgent, OffloadingDataLoader, OffloadOptions
from sophon_loader.decide.facts import Choice, Facts
from sophon_loader.decide.plan import Plan, uniform_plan
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policies.sophon import Sophon
from sophon_loader.decide.tariff import NO_TRAFFIC, Part, Prices, Tariff, Traffic
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import PlanError
from sophon_loader.host.system import cores_available
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, MakeLoader, SeenIndex, samples_of
from tests.support.pictures import picture

FILES, BATCH = 64, 8
LOADER = {"batch_size": BATCH, "policy": "auto", "seed": 5}
LIMIT_MBIT = 20
needs_crop = pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")
Samples = list[tuple[str, Any]]


# --- pictures, pipelines, agents ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds every tree of this module."""
    folder = tmp_path_factory.mktemp("auto")
    make_pictures(folder / "photos", FILES, classes=4, side=360)
    make_pictures(folder / "mixed", 24, classes=2, side=200)
    for number, path in enumerate(sorted((folder / "mixed").rglob("*.jpg"))):
        image = Image.open(path).convert("RGB")
        if number % 4 == 0:
            image.save(path, progressive=True, quality=85)
        elif number % 4 == 1:
            path.unlink()
            image.save(path.with_suffix(".png"))
        elif number % 4 == 2:
            image.convert("L" if number % 8 == 2 else "CMYK").save(path)
    make_pictures(folder / "half", FILES, classes=4, side=500)
    for path in sorted((folder / "half").rglob("*.jpg"))[::2]:
        Image.open(path).save(path, progressive=True, quality=95)
    exif = Image.Exif()
    for number in range(16):
        (folder / "turned" / "c").mkdir(parents=True, exist_ok=True)
        exif[0x0112] = 1 + number % 8
        picture(180 + number, 140, number).save(folder / "turned" / "c" / f"{number:02}.jpg", exif=exif, quality=92)
    return folder


@pytest.fixture(scope="module")
def slow(root: Path) -> Iterator[Agent]:
    """An agent behind a narrow wire."""
    with agent_for({"all": root}, "--limit-mbit", str(LIMIT_MBIT)) as running:
        yield running


@pytest.fixture(scope="module")
def fast(root: Path) -> Iterator[Agent]:
    """An agent of one worker, behind a wire that is never the limit."""
    with agent_for({"all": root}) as running:
        yield running


def train(px: int = 96) -> Any:
    return v1.Compose(
        [v1.RandomResizedCrop(px), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)]
    )


def heavy() -> Any:
    """Tens of milliseconds a picture, and then small."""
    return v1.Compose([v1.Resize(1000), v1.RandomRotation(9), v1.CenterCrop(64), v1.ToTensor()])


def folder(root: Path, name: str = "photos", transform: Any = None) -> ImageFolder:
    return ImageFolder(str(root / name), transform or train())


@pytest.fixture
def make(make: MakeLoader, root: Path, slow: Agent) -> MakeLoader:
    """As elsewhere, for a tree and an agent."""

    def build(dataset: Any = None, agent: Any = slow, tree: str = "photos", **more: Any) -> OffloadingDataLoader[Any]:
        dataset = folder(root, tree) if dataset is None else dataset
        return make(dataset, agent.address(f"all/{tree}".rstrip("/")) if isinstance(agent, Agent) else agent, **more)

    return build


_EXPECTED: dict[Any, Samples] = {}


def expected(dataset: Any, epoch: int, key: Any = "photos") -> Samples:
    """An epoch computed on this host, without agent, workers and offloading."""
    if (key, epoch) not in _EXPECTED:
        loader = OffloadingDataLoader(dataset, batch_size=5, policy="no-off", seed=5)
        loader.set_epoch(epoch)
        _EXPECTED[key, epoch] = samples_of(loader)
        loader.close()
    return _EXPECTED[key, epoch]


def epochs(
    loader: OffloadingDataLoader[Any], count: int, dataset: Any = None, key: Any = "photos"
) -> list[dict[str, Any]]:
    """The reports of some epochs, each of which has given the samples that it must give."""
    reports = []
    for _ in range(count):
        epoch = loader._place.next_epoch
        assert samples_of(loader) == expected(loader.dataset if dataset is None else dataset, epoch, key)
        reports.append(loader.report().as_dict())
    return reports


# --- a narrow wire --------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_auto_with_an_agent_of_its_own(make: Any) -> None:
    loader = make(agent=LocalAgent(workers=1, limit_mbit=LIMIT_MBIT), options=OffloadOptions(), num_workers=1)
    reports = epochs(loader, 5)
    for report in reports:
        assert report["wire_bytes"] < 0.9 * report["file_bytes"], "from the first epoch on"
        assert report["samples"] == FILES and report["fallbacks"] == report["degraded"] == 0
        assert sum(report["choices"].values()) == FILES and set(report["choices"]) != {"file"}
    for report in reports[3:]:
        assert report["plan_reason"].startswith("without offloading the network limits, at ")
        assert "of the files' bytes" in report["plan_reason"]
        assert report["predicted_seconds"] > 0
        assert set(report["rates"]) >= {"gpu_samples_s", "wire_bytes_s", "loader_cores", "agent_cores"}
        assert 0.2 < report["rates"]["wire_bytes_s"] / (LIMIT_MBIT / 8 * 1e6) < 1.5
        assert report["bottleneck"] in ("wire", "loader-cpu", "agent-cpu", "gpu")
    text = str(loader.report())
    assert "why this plan" in text and "what limits" in text and "sent as" in text


@pytest.mark.alone
def test_behind_a_paced_link_it_works_beside_a_loader_that_may_use_every_core(make: Any) -> None:
    processes = math.ceil(cores_available())
    loader = make(agent=LocalAgent(workers=1, limit_mbit=LIMIT_MBIT), options=OffloadOptions(), num_workers=processes)
    for report in epochs(loader, 6):
        assert report["wire_bytes"] < 0.9 * report["file_bytes"], report["plan_reason"]
    assert report["bottleneck"] is not None


@pytest.mark.parametrize(
    ("policy", "workers"), [("auto", 0), ("sophon", 1), (FastFlow(trial_steps=4), 0), ("no-off", 1)]
)
def test_every_policy_gives_the_same_samples(make: Any, policy: Any, workers: int) -> None:
    reports = epochs(make(policy=policy, num_workers=workers), 3)
    last = reports[-1]
    assert all(report["samples"] == FILES for report in reports)
    assert all(report["plan_reason"] for report in reports)
    if policy == "auto":
        assert all(report["wire_bytes"] < report["file_bytes"] for report in reports)
    elif policy == "sophon":
        assert last["wire_bytes"] < reports[0]["wire_bytes"]
        assert last["predicted_seconds"] > 0
    elif policy == "no-off":
        assert last["choices"] == {"file": FILES}
    else:
        assert len({report["plan_reason"] for report in reports}) > 1, "it has tried something"


def test_the_paper_s_encodings_are_the_only_ones(make: Any) -> None:
    _, report = epochs(make(encodings="paper"), 2)
    assert set(report["choices"]) <= {"file", "pixels", "array"}
    assert report["wire_bytes"] < report["file_bytes"], "some crops are smaller than their files"


def test_files_of_every_kind(root: Path, make: Any) -> None:
    for report in epochs(make(tree="mixed", num_workers=1), 2, key="mixed"):
        assert report["samples"] == 24 and report["wire_bytes"] < report["file_bytes"]


@needs_crop
def test_files_that_cannot_be_cut_are_offloaded_beside_those_that_can(root: Path, make: Any) -> None:
    """Half of them are progressive: a cut that would be refused is not chosen for them."""
    loader = make(folder(root, "half", train(224)), tree="half", num_workers=1)
    for _ in range(16):  # on a busy machine it takes some until enough has been tried
        (report,) = epochs(loader, 1, key="half")
        choices = report["choices"]
        cut = choices.get("roi-jpeg", 0) + choices.get("roi-lepton", 0)
        otherwise = sum(choices.values()) - cut - choices.get("file", 0)
        if cut >= FILES // 4 and otherwise >= FILES // 8:  # the agent's CPU may be too scarce for all of them
            return
    raise AssertionError(choices)


@needs_crop
def test_a_file_whose_bitstream_cannot_be_cut_goes_whole(root: Path, make: Any) -> None:
    loader = make(tree="mixed", policy=Always(Choice(0, "roi-jpeg")))
    (report,) = epochs(loader, 1, key="mixed")
    assert 0 < report["choices"]["roi-jpeg"] < 12, "of baseline files only"
    assert sum(report["choices"].values()) == 24


@pytest.mark.parametrize(("encoding", "files"), [("lepton", 23), ("roi-lepton", 11)])
def test_files_in_fewer_bytes(make: Any, encoding: str, files: int) -> None:
    """All but the PNG, and of the parts those of baseline files that are smaller than the whole."""
    if encoding not in encoding_names():
        pytest.skip(f"{encoding} is not offered")
    loader = make(tree="mixed", policy=Always(Choice(0, encoding)), num_workers=1)
    first, second = epochs(loader, 2, key="mixed")
    for report in (first, second):
        assert 0 < report["choices"][encoding] <= files and sum(report["choices"].values()) == 24
        assert report["wire_bytes"] < report["file_bytes"]


@pytest.mark.parametrize("policy", ["auto", "all-off", "resize-off"])
def test_an_op_that_turns_pictures_by_their_exif_sees_it(root: Path, make: Any, policy: str) -> None:
    """It is not registered, so it runs at the loader, behind the crop, on parts that have kept their EXIF as well."""
    crop, rest = v1.RandomResizedCrop((40, 60), scale=(0.1, 0.3)), [v1.Resize((50, 50)), v1.ToTensor()]
    dataset = folder(root, "turned", v1.Compose([crop, ImageOps.exif_transpose, *rest]))
    blind = folder(root, "turned", v1.Compose([crop, *rest]))
    assert expected(dataset, 0, "turned") != expected(blind, 0, "blind"), "it makes a difference"
    for report in epochs(make(dataset, tree="turned", policy=policy), 2, key="turned"):
        assert set(report["cuts"]) <= {0, 1, 2}
        assert any("is not registered" in note for note in report["notes"])


@pytest.mark.alone
def test_pipelines_of_different_lengths(root: Path, make: Any) -> None:
    """A stage that only one of them has is no choice for the other's samples."""
    crop, to_tensor = v1.RandomResizedCrop(20), v1.ToTensor()
    parts = [
        folder(root, "mixed", v1.Compose([v1.RandomResizedCrop(160), _shrink])),  # the agent reaches stage 2, the large
        folder(root, "turned", v1.Compose([crop, to_tensor])),
        folder(root, "photos", v1.Compose([crop, v1.RandomHorizontalFlip(), v1.ColorJitter(0.2), to_tensor])),
    ]
    dataset = ConcatDataset(parts)
    first, report = epochs(make(dataset, tree="", num_workers=1, encodings="paper", policy="sophon"), 2, key="parts")
    assert report["wire_bytes"] < report["file_bytes"]
    # The rate that was planned with; a first epoch on a busy machine has not waited for the wire, and a burst found it.
    wire_bytes_s = first["rates"].get("wire_bytes_s", report["rates"]["wire_bytes_s"])
    predicted = report["predicted_seconds"] * wire_bytes_s
    assert report["wire_bytes"] < 1.5 * predicted, "no sample was thought to be smaller than it is"
    for report in epochs(make(dataset, tree="", num_workers=1, encodings="paper"), 2, key="parts"):
        assert set(report["choices"]) <= {"file", "pixels", "array"} and report["degraded"] == 0


def _shrink(image: Image.Image) -> torch.Tensor:
    """An op of the user's, behind which a sample is small."""
    return torch.from_numpy(np.array(image.resize((20, 20)))).permute(2, 0, 1).float() / 255


# --- what is the bottleneck -----------------------------------------------------------------------------------


@pytest.mark.alone
def test_a_slow_training_step_leaves_nothing_to_offload(root: Path, make: Any, fast: Agent) -> None:
    batch_size, step_s = 2, 0.05
    dataset = Subset(folder(root), range(32))
    loader = make(dataset, batch_size=batch_size, agent=fast, policy="sophon", num_workers=1)
    for _ in range(2):
        for _batch in loader:
            time.sleep(step_s)
    report = loader.report().as_dict()
    assert report["bottleneck"] == "gpu"
    assert report["choices"] == {"file": 32}
    assert "the training step limits, not the network: nothing is offloaded" in report["plan_reason"]
    assert 10 < report["rates"]["gpu_samples_s"] < 1.1 * batch_size / step_s
    assert report["rates"]["wire_bytes_s"] > 1e6, "no epoch waited for it, so a burst has measured it"


@pytest.mark.alone
def test_with_stages_a_slow_training_step_leaves_nothing_to_measure(root: Path, make: Any, fast: Agent) -> None:
    loader = make(Subset(folder(root), range(24)), batch_size=2, agent=fast, policy=Sophon(6), num_workers=1)
    for _batch in loader:
        time.sleep(0.1)
    report = loader.report().as_dict()
    assert report["plan_reason"].startswith("stage 1: the training step limits (")
    assert not loader._engine.run.profiler.samples.known.any()
    assert set(report["throughput"]) == {"gpu", "io", "cpu"} and "without offloading" in str(loader.report())


def test_the_first_stage_is_a_part_of_what_measuring_finds(make: Any) -> None:
    report = make(policy="sophon", tree="mixed", batch_size=1).measure(lambda _: time.sleep(0.01))
    assert set(report.throughput) == {"gpu", "io", "cpu"} and report.bottleneck is not None
    assert 0 < report.throughput["gpu"] <= 1 / 0.01


@pytest.mark.alone
def test_fastflow_tries_nothing_where_the_training_step_is_slow(root: Path, make: Any, fast: Agent) -> None:
    """In the middle of the first epoch: 2 steps to warm up, 8 that are twice the lag, its window of 4, the decision."""
    loader = make(Subset(folder(root), range(24)), batch_size=1, agent=fast, policy=FastFlow("every", 4), num_workers=1)
    reasons = []
    for _batch in loader:
        time.sleep(0.15)
        reasons.append(loader.report().plan_reason)
    assert set(reasons[:14]) == {"trial of the local pipeline"}
    assert "the training step could take 1." in reasons[-1] and "nothing is offloaded" in reasons[-1]


@pytest.mark.alone
def test_a_loader_short_of_cpu(root: Path, make: Any, fast: Agent) -> None:
    dataset = Subset(folder(root, transform=heavy()), range(32))
    loader = make(dataset, batch_size=1, agent=fast, policy="no-off", num_workers=1)
    for report in epochs(loader, 2, key="heavy"):
        assert report["bottleneck"] == "loader-cpu"


@pytest.mark.alone
def test_an_agent_short_of_cpu(root: Path, make: Any, fast: Agent) -> None:
    """32 samples are asked for ahead of one worker: one that the machine stops for a moment is still the limit."""
    dataset = Subset(folder(root, transform=heavy()), [*range(44)] * 2)
    loader = make(dataset, batch_size=2, prefetch_factor=16, agent=fast, policy="all-off", num_workers=1)
    (report,) = epochs(loader, 1, key="heavier")
    assert report["bottleneck"] == "agent-cpu"
    assert report["cuts"] == {5: 88}


# --- epochs that are cut short --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_first_epoch_is_planned_with_as_far_as_it_went(make: Any, workers: int) -> None:
    loader = make(num_workers=workers, policy="sophon")
    for number, _batch in enumerate(loader):
        if number == 2:
            break
    second, third = epochs(loader, 2)
    assert second["samples"] == third["samples"] == FILES
    assert "% of the samples are profiled" in second["plan_reason"]
    assert "are profiled" not in third["plan_reason"], "the second epoch measured the rest"


def test_an_epoch_without_a_batch_changes_nothing(make: Any) -> None:
    loader = make(policy="sophon")
    iter(loader)
    assert epochs(loader, 1)[0]["plan_reason"] == "this epoch measures, without offloading"


def test_a_sample_that_fails_while_it_is_measured(root: Path, make: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(root / "mixed", tree)
    dataset = folder(tree.parent, "tree")
    Path(dataset.samples[10][0]).write_bytes(b"no picture")
    sampler = SeenIndex(range(24))
    with agent_for({"all": tree}, "--limit-mbit", str(LIMIT_MBIT)) as agent:
        arguments: dict[str, Any] = {"agent": agent.address("all"), "policy": "sophon", "seed": 5, "options": QUICK}
        loader = OffloadingDataLoader(dataset, 4, sampler=sampler, **arguments)
        with pytest.raises(UnidentifiedImageError):
            samples_of(loader)
        sampler.order.remove(10)
        for _ in range(3):
            epoch = loader._place.next_epoch
            found = samples_of(loader)
            reference = OffloadingDataLoader(dataset, 4, sampler=sampler, seed=5)
            reference.set_epoch(epoch)
            assert found == samples_of(reference)
        report = loader.report().as_dict()
        assert "only 95.8 % of the samples are profiled" in report["plan_reason"]
        loader.close()


def test_an_agent_that_is_restarted_while_it_is_profiled(root: Path, make: Any) -> None:
    with agent_for({"all": root}) as agent:
        loader = make(agent=agent, tree="mixed", policy="sophon")
        iterator = iter(loader)
        found = samples_of([next(iterator)])
        agent.kill()
        agent.start()
        found += samples_of(iterator)
        assert found == expected(loader.dataset, 0, "mixed")
        for report in epochs(loader, 2, key="mixed"):
            assert report["samples"] == 24 and report["fallbacks"] == 0


@pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")
def test_an_agent_that_is_gone_when_the_wire_is_to_be_measured(root: Path, make: Any) -> None:
    with agent_for({"all": root}) as agent:
        loader = make(agent=agent, tree="mixed", num_workers=1, policy="sophon")
        for _batch in loader:
            time.sleep(0.2)  # the samples are there before the step asks for them, so the wire shows nothing
        if "wire_bytes_s" in loader.report().as_dict()["rates"]:
            pytest.skip("the machine was so busy that the epoch waited for the wire after all")
        agent.kill()
        (report,) = epochs(loader, 1, key="mixed")
        assert report["fallbacks"] == report["samples"] == 24


# --- profiles -------------------------------------------------------------------------------------------------


def test_a_profile_is_kept_and_reused(root: Path, make: Any, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "profile.npz"
    first = epochs(make(profile=path), 1)[0]
    assert any("measuring anew: there is no profile" in note for note in first["notes"])
    assert path.exists()
    loader = make(profile=path)
    next(iter(loader))
    begun = loader.report().as_dict()
    assert begun["predicted_seconds"] > 0 and " limits, at " in begun["plan_reason"], "it plans from the first batch on"
    assert f"reusing the profile at {path}" in epochs(loader, 1)[0]["notes"]
    other = make(folder(root, transform=train(80)), profile=path)
    list(other)
    assert any("is of another pipeline" in note for note in other.report().as_dict()["notes"])


@pytest.mark.parametrize("policy", ["auto", "sophon"])
def test_profiling_beforehand_leaves_the_run_as_it_was(make: Any, policy: str) -> None:
    seen = []

    def step(batch: Any) -> None:
        seen.append(len(batch[0]))

    torch.manual_seed(3)
    loader = make(policy=policy, shuffle=True, seed=None, num_workers=1)
    state = torch.get_rng_state()
    report = loader.measure(step).as_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(seen) == report["samples"] == FILES
    if policy == "sophon":
        assert report["choices"] == {"file": FILES} and "measures" in report["plan_reason"]
    found = samples_of(loader)
    planned = loader.report().as_dict()
    assert planned["epoch"] == 0
    assert planned["predicted_seconds"] > 0 and planned["wire_bytes"] < report["file_bytes"]
    torch.manual_seed(3)
    plain = make(shuffle=True, seed=None, agent=None, policy="no-off")
    assert samples_of(plain) == found


@pytest.mark.parametrize("policy", ["sophon", FastFlow(trial_steps=40)])
def test_profiling_between_epochs(make: Any, policy: Any) -> None:
    """Each pass measures without offloading, and the epochs after it follow a plan again."""
    loader = make(policy=policy, tree="mixed", batch_size=4)
    epochs(loader, 2, key="mixed")
    for _ in range(2):
        report = loader.measure().as_dict()
        assert report["choices"] == {"file": 24} and "measures" in report["plan_reason"]
        (planned,) = epochs(loader, 1, key="mixed")
        assert "measures" not in planned["plan_reason"]
        if policy == "sophon":
            assert planned["wire_bytes"] < report["wire_bytes"]


def test_a_step_that_fails_ends_the_profiling(make: Any) -> None:
    loader = make(tree="mixed")
    with pytest.raises(ZeroDivisionError):
        loader.measure(lambda batch: 1 // 0)
    first, second = epochs(loader, 2, key="mixed")
    assert (first["epoch"], second["epoch"]) == (0, 1)


def test_what_fastflow_has_tried_is_kept_for_the_next_loader(make: Any, tmp_path: Path) -> None:
    profile = tmp_path / "run.npz"
    loader = make(policy=FastFlow(trial_steps=1), tree="mixed", batch_size=4, profile=profile)
    while not any(profile.parent.glob("*.trials")):
        *_, report = epochs(loader, 1, key="mixed")
    assert f"trying anew: there are no trials at {profile}.trials yet" in report["notes"]
    decided, _, _ = loader.report().plan_reason.partition("; only")
    again = make(policy=FastFlow(trial_steps=1), tree="mixed", batch_size=4, profile=profile)
    next(iter(again))
    assert again.report().plan_reason.startswith(decided)
    assert f"reusing the trials at {profile}.trials" in again.report().notes


# --- little and wrong input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["auto", "sophon", "fastflow"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_dataset(root: Path, make: Any, tmp_path: Path, policy: str, workers: int) -> None:
    loader = make(Subset(folder(root), []), policy=policy, num_workers=workers, profile=tmp_path / "p")
    for _ in range(2):
        assert samples_of(loader) == []
    assert samples_of(loader) == [] and loader.measure().as_dict()["samples"] == 0
    assert str(loader.report())


@pytest.mark.parametrize("policy", ["auto", "sophon", FastFlow(trial_steps=1)])
def test_one_sample(root: Path, make: Any, policy: Any) -> None:
    loader = make(Subset(folder(root), [7]), policy=policy)
    assert [report["samples"] for report in epochs(loader, 3, key="one")] == [1, 1, 1]


class Always:
    """A policy of the user's own: one choice for all."""

    name = "always"
    needs_profile = False

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.facts: list[Facts] = []

    def plan(self, facts: Facts) -> Plan:
        self.facts.append(facts)
        return uniform_plan(self.name, facts.samples, self.choice, "because I say so")


@pytest.mark.parametrize("choice", [Choice(1, "webp"), Choice(2, "pixels"), Choice(99, "pixels"), Choice(0, "webp")])
def test_a_policy_of_one_s_own(make: Any, choice: Choice) -> None:
    policy = Always(choice)
    (report,) = epochs(make(policy=policy, tree="mixed"), 1, key="mixed")
    assert report["policy"] == "always" and report["plan_reason"] == "because I say so"
    assert set(report["cuts"]) == {min(choice.cut, 5)}
    assert [(facts.samples, facts.max_cut, facts.table) for facts in policy.facts] == [(24, 5, None)]


def test_a_policy_of_one_s_own_that_wants_a_profile(make: Any) -> None:
    policy = Always(Choice(2, "webp"))
    policy.needs_profile = True
    first, second = epochs(make(policy=policy, tree="mixed"), 2, key="mixed")
    assert first["choices"] == {"file": 24} and second["choices"] == {"webp": 24}
    (facts,) = policy.facts
    assert facts.table is not None and facts.profiled_share == 1.0


class FewestBytes:
    """Prices of the user's own: a byte on the wire, and nothing else."""

    name = "fewest-bytes"

    def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        return Tariff((Part(1.0, Prices(wire=1.0, loader=0.0, agent=0.0)),), "asked to save bytes")


def test_prices_of_one_s_own(make: Any) -> None:
    loader = make(policy=FewestBytes())
    for _ in range(20):  # until the agent has weighed enough samples
        (report,) = epochs(loader, 1)
        if report["plan_reason"] == "asked to save bytes":
            break
    assert report["policy"] == "fewest-bytes" and report["plan_reason"] == "asked to save bytes"
    assert report["wire_bytes"] < report["file_bytes"] and report["would_bring"] == report["limits"] == {}


def test_a_policy_that_nobody_knows(make: Any) -> None:
    known = "no-off, all-off, resize-off, fastflow, fastflow-every, sophon, auto"
    with pytest.raises(PlanError, match=f"{known}.*got 'car'") as caught:
        make(policy="car")
    assert "or pass a Policy object" in str(caught.value)
    for wrong in (object(), FastFlow, None):
        with pytest.raises(PlanError, match="policy must have name, needs_profile and plan"):
            make(policy=wrong)


def test_the_pictures_of_this_module_are_worth_offloading(root: Path) -> None:
    """Else a test that finds fewer bytes would find them for a wrong reason."""
    sizes = [path.stat().st_size for path in (root / "photos").rglob("*.jpg")]
    assert len(sizes) == FILES
    assert sum(size > 96 * 96 * 3 for size in sizes) > FILES // 3
