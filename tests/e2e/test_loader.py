"""OffloadingDataLoader against a real agent process: the same samples as without, and a drop-in for DataLoader."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import sophon_loader
from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.client.session import Session
from sophon_loader.errors import ConfigError, PlanError
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
from tests.support import loaders
from tests.support.agent_ops import Gate, waiting
from tests.support.agents import Agent, agent_for, until
from tests.support.loaders import (
    LOCAL,
    POLICIES,
    PlainPictures,
    SeenIndex,
    as_list,
    digest_of,
    noisy_target,
    run_epoch,
    samples_of,
    times_two,
)
from tests.support.pictures import eval_transform, folder, make_tree, train_transform

FILES = 48
LOADER = {"batch_size": 7, "policy": "resize-off"}
PACKAGE = os.path.dirname(sophon_loader.__file__)
IMAGENET = Path(__file__).parents[2].parent / "shared" / "data" / "imagenet"


_REFERENCE: dict[tuple[int, int], list[tuple[str, Any]]] = {}


def reference(root: Path, seed: int = 3, epoch: int = 0) -> list[tuple[str, Any]]:
    """An epoch of the tree in order, computed without agent and workers."""
    if (seed, epoch) not in _REFERENCE:
        loader = OffloadingDataLoader(folder(root), batch_size=5, policy="no-off", seed=seed)
        loader.set_epoch(epoch)
        _REFERENCE[seed, epoch] = run_epoch(loader)
    return _REFERENCE[seed, epoch]


# --- the same samples, whatever is done where -----------------------------------------------------------------

COMBINATIONS = [
    *[("no-off", 0, 1, "fork"), ("no-off", 1, 7, "fork"), ("no-off", 3, 16, "fork")],
    *[("all-off", 0, 16, "fork"), ("all-off", 1, 1, "fork"), ("all-off", 3, 7, "fork")],
    *[("resize-off", 0, 7, "fork"), ("resize-off", 1, 16, "fork"), ("resize-off", 3, 1, "fork")],
    *[("all-off", 1, 7, "spawn"), ("resize-off", 2, 16, "spawn"), ("no-off", 1, 64, "spawn")],
]


@pytest.mark.parametrize(("policy", "workers", "batch_size", "method"), COMBINATIONS)
def test_the_same_samples_under_every_policy_and_layout(
    root: Path, make: Any, policy: str, workers: int, batch_size: int, method: str
) -> None:
    context = method if workers else None
    loader = make(policy=policy, num_workers=workers, batch_size=batch_size, seed=3, multiprocessing_context=context)
    assert samples_of(loader) == reference(root)
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"], report["retries"], report["epoch"]) == (FILES, 0, 0, 0)
    assert set(report["cuts"]) == {{"no-off": 0, "all-off": 6, "resize-off": 2}[policy]}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["sophon", "fastflow", "auto"])
def test_the_same_samples_under_policies_that_measure(root: Path, make: Any, policy: str, workers: int) -> None:
    loader = make(policy=policy, num_workers=workers, seed=3)
    for epoch in range(3):
        assert samples_of(loader) == reference(root, epoch=epoch)
        report = loader.report().as_dict()
        assert (report["samples"], report["fallbacks"], report["epoch"]) == (FILES, 0, epoch)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (1, "spawn")])
def test_the_same_samples_without_an_agent(root: Path, make: Any, workers: int, method: str | None) -> None:
    loader = make(agent=None, num_workers=workers, seed=3, multiprocessing_context=method)
    assert samples_of(loader) == reference(root)
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"], report["wire_bytes"]) == (FILES, 0, 0)


@pytest.mark.parametrize("encodings", ["auto", "paper", ["webp", "file"]], ids=str)
def test_the_same_samples_with_other_encodings(root: Path, make: Any, encodings: Any) -> None:
    assert samples_of(make(encodings=encodings, seed=3)) == reference(root)


@pytest.mark.usefixtures("new_interpreters")
def test_an_agent_of_one_s_own(root: Path, make: Any) -> None:
    loader = make(agent=LOCAL, num_workers=1, seed=3)
    assert samples_of(loader) == reference(root)
    agents = [child for child in psutil.Process().children() if "--end-with-stdin" in child.cmdline()]
    mine = [child for child in agents if f"local={root}" in child.cmdline()]
    assert len(mine) == 1
    loader.close()
    assert not mine[0].is_running() or mine[0].status() == psutil.STATUS_ZOMBIE
    assert samples_of(loader) == reference(root, epoch=1), "it can be used again"


def test_another_epoch_or_seed_is_another_set_of_samples(root: Path) -> None:
    images = [[digest for digest, _ in reference(root, seed, epoch)] for seed, epoch in ((3, 0), (3, 1), (4, 0))]
    assert all(len(set(column)) == 3 for column in zip(*images, strict=True))


def test_real_pictures_at_full_size(root: Path, make: Any) -> None:
    data = IMAGENET if IMAGENET.is_dir() else root
    whole = ImageFolder(str(data), train_transform(224))
    dataset = Subset(whole, range(min(48, len(whole))))
    expected = run_epoch(OffloadingDataLoader(dataset, batch_size=16, policy="no-off", seed=1))
    with agent_for({"data": data}, workers=2) as agent:
        for policy, workers in (("no-off", 1), ("all-off", 2), ("resize-off", 0)):
            loader = make(dataset, agent=agent.address("data"), policy=policy, num_workers=workers, seed=1)
            assert samples_of(loader) == expected, policy


# --- random numbers -------------------------------------------------------------------------------------------


def test_manual_seed_reproduces_a_run(make: Any) -> None:
    runs = []
    for seed in (8, 8, 9):
        torch.manual_seed(seed)
        loader = make(shuffle=True, num_workers=2)
        runs.append([samples_of(loader) for _ in range(2)])
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "given", [{"shuffle": True}, {"sampler": "weighted"}, {"generator": 4, "shuffle": True}], ids=str
)
def test_the_order_is_that_of_torch_under_the_same_seed(
    root: Path, make: Any, given: dict[str, Any], workers: int
) -> None:
    dataset = PlainPictures(root, eval_transform())

    def order(build: Any) -> list[Any]:
        arguments = dict(given)
        if "generator" in given:
            arguments["generator"] = torch.Generator().manual_seed(given["generator"])
        if "sampler" in given:
            arguments["sampler"] = WeightedRandomSampler(range(1, len(dataset) + 1), 30)
        torch.manual_seed(8)
        loader = build(dataset, batch_size=7, num_workers=workers, **arguments)
        return [[targets.tolist() for _, targets in loader] for _ in range(3)]

    assert order(make) == order(DataLoader)


def _states(loader: Any, epochs: int) -> list[Any]:
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    for _ in range(epochs):
        list(loader)
    return [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]  # type: ignore[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_user_s_generators_are_left_as_torch_leaves_them(root: Path, make: Any, workers: int) -> None:
    drawing = folder(root, v1.Compose([train_transform(), times_two]), target_transform=noisy_target)
    drawing_nothing = folder(root, eval_transform())
    ours = _states(make(drawing, shuffle=True, num_workers=workers), 2)
    assert ours == _states(DataLoader(drawing_nothing, batch_size=7, shuffle=True, num_workers=workers), 2)


def test_a_failing_epoch_leaves_the_generators_alone_too(make: Any) -> None:
    torch.manual_seed(5)
    loader = make(sampler=SeenIndex([0, 1, 9999]), batch_size=3)
    iterator = iter(loader)
    before = torch.get_rng_state()
    with pytest.raises(IndexError):
        next(iterator)
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_s_number_of_threads_is_given_back(make: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        list(make(num_workers=0))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- exactly once, however it is iterated ---------------------------------------------------------------------


def test_persistent_workers_over_several_epochs(root: Path, make: Any) -> None:
    loader = make(num_workers=2, persistent_workers=True, seed=3)
    for epoch in range(3):
        assert samples_of(loader) == reference(root, epoch=epoch)
        report = loader.report().as_dict()
        assert (report["samples"], report["epoch"]) == (FILES, epoch)
    workers = set(multiprocessing.active_children())
    assert len(workers) >= 2
    kept = iter(loader)
    loader.close()
    until(lambda: workers.isdisjoint(multiprocessing.active_children()), "the workers have ended")
    del kept


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_an_abandoned_epoch_leaves_nothing_behind(root: Path, make: Any, arguments: dict[str, Any]) -> None:
    loader = make(batch_size=3, seed=3, **arguments)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    iter(loader)
    assert samples_of(loader) == reference(root, epoch=2)
    report = loader.report().as_dict()
    assert (report["samples"], report["epoch"]) == (FILES, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_two_iterators_at_once(root: Path, make: Any, workers: int) -> None:
    loader = make(batch_size=4, num_workers=workers, seed=3)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    assert samples_of(a for a, _ in pairs) == reference(root, epoch=0)
    assert samples_of(b for _, b in pairs) == reference(root, epoch=1)


def test_set_epoch(root: Path, make: Any) -> None:
    loader = make(seed=3, num_workers=1)
    loader.set_epoch(1)
    assert samples_of(loader) == reference(root, epoch=1)
    assert samples_of(loader) == reference(root, epoch=2), "epochs count up from there"
    loader.set_epoch(0)
    assert samples_of(loader) == reference(root, epoch=0)


def test_distributed_samplers_get_the_epoch_and_share_the_samples(root: Path, make: Any) -> None:
    dataset = folder(root)
    for epoch in (0, 3):
        found = []
        for rank in range(2):
            sampler = DistributedSampler(dataset, num_replicas=2, rank=rank, shuffle=True, seed=11)
            loader = make(dataset, sampler=sampler, num_workers=1, seed=3, policy="all-off")
            loader.set_epoch(epoch)
            assert sampler.epoch == epoch
            found += samples_of(loader)
        assert sorted(found) == sorted(reference(root, epoch=epoch)), "no sample depends on its rank"


# --- every argument of DataLoader -----------------------------------------------------------------------------


def picked(root: Path, indices: Any) -> list[tuple[str, Any]]:
    """What a sampler gets that asks for these: each as often as it comes, with random numbers of its own each time."""
    dataset, met, found = folder(root), Counter[int](), []
    chain = chain_of(dataset.transform)
    for index in indices:
        path, target = dataset.samples[index]
        with chain.isolated():
            image = chain.run(Path(path).read_bytes(), 0, len(chain), Draw(3, 0, index, met[index]))
        found.append((digest_of(image), target))
        met[index] += 1
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers(root: Path, make: Any, workers: int) -> None:
    order = [5, 5, 0, 47, *range(20), 5]
    assert samples_of(make(sampler=SeenIndex(order), num_workers=workers, seed=3)) == picked(root, order)
    batches = [[3, 3, 3], [1], [40, 2, 40, 7, 9, 11, 13], [3]]
    loader = make(batch_size=1, batch_sampler=batches, num_workers=workers, seed=3)
    assert samples_of(loader) == picked(root, [i for batch in batches for i in batch])
    assert loader.report().as_dict()["samples"] == sum(map(len, batches))


def test_negative_indices_are_those_of_a_list(root: Path, make: Any) -> None:
    assert samples_of(make(sampler=SeenIndex([-1, -48]), seed=3)) == picked(root, [47, 0])


def test_drop_last(root: Path, make: Any) -> None:
    loader = make(batch_size=10, drop_last=True, num_workers=2, seed=3)
    assert len(loader) == 4
    assert samples_of(loader) == reference(root)[:40]


@pytest.mark.parametrize("workers", [0, 2])
def test_without_batches(root: Path, make: Any, workers: int) -> None:
    loader = make(batch_size=None, num_workers=workers, seed=3)
    found = [(digest_of(image), target) for image, target in loader]
    assert found == reference(root)


def test_a_collate_function_sees_the_samples(root: Path, make: Any) -> None:
    loader = make(collate_fn=as_list, num_workers=2, batch_size=5, seed=3)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [5] * 9 + [3]
    assert [(digest_of(image), target) for batch in batches for image, target in batch] == reference(root)
    assert all(type(sample) is tuple for batch in batches for sample in batch)


def test_the_next_batch_is_on_its_way_while_this_one_is_worked_on(
    root: Path, make: Any, agent: Agent, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def answers() -> int:
        return sum(agent.status()["answers"].values())

    before = answers()
    dataset = folder(root, v1.Compose([Gate(str(gate)), train_transform()]))
    batches = iter(make(dataset, batch_size=4, num_workers=1, policy="no-off"))
    try:
        until(lambda: waiting(gate) and answers() - before == 8, "two batches have been asked for")
    finally:
        gate.touch()
    assert sum(len(labels) for _, labels in batches) == FILES


def test_in_any_order(root: Path, make: Any) -> None:
    loader = make(in_order=False, num_workers=2, batch_size=3, seed=3)
    assert sorted(samples_of(loader)) == sorted(reference(root))


def test_pinned_memory(root: Path, make: Any) -> None:
    assert samples_of(make(pin_memory=True, num_workers=1, seed=3)) == reference(root)


def test_timeout_and_worker_init_and_prefetch(root: Path, make: Any, tmp_path: Path) -> None:
    def note(worker: int) -> None:
        (tmp_path / str(worker)).touch()

    loader = make(timeout=30, worker_init_fn=note, num_workers=2, prefetch_factor=4, seed=3)
    assert samples_of(loader) == reference(root)
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def test_the_timeout_is_torch_s(make: Any) -> None:
    with pytest.raises(RuntimeError, match="timed out"):
        list(make(timeout=0.2, num_workers=1, worker_init_fn=_wait_long))


def _wait_long(worker: int) -> None:
    time.sleep(1)


def test_it_is_a_dataloader(root: Path, make: Any) -> None:
    dataset = folder(root)
    loader = make(dataset, shuffle=True, num_workers=2)
    plain = DataLoader(dataset, 7, shuffle=True, num_workers=2)
    assert isinstance(loader, DataLoader)
    assert loader.dataset is dataset
    assert len(loader) == len(plain) == len(iter(loader))
    assert type(loader.sampler) is type(plain.sampler)
    assert type(loader.batch_sampler) is type(plain.batch_sampler)
    assert loader.batch_sampler.sampler is loader.sampler
    for name in ("batch_size", "num_workers", "drop_last", "prefetch_factor", "collate_fn", "pin_memory", "timeout"):
        assert getattr(loader, name) == getattr(plain, name)
    with pytest.raises(ValueError, match="mutually exclusive"):
        make(sampler=SeenIndex([1]), shuffle=True)


def test_arguments_that_cannot_work(make: Any) -> None:
    with pytest.raises(ConfigError, match="agent must be 'local', None or an address"):
        make(agent="fileserver:5555/x")
    with pytest.raises(
        ConfigError, match=r"agent must be one address or more, got \[\]; for no agent, write agent=None"
    ):
        make(agent=[])
    with pytest.raises(ConfigError, match="each agent must be given once, got tcp://a:1/x 2 times"):
        make(agent=["tcp://a:1/x", "tcp://a:1/x"])
    with pytest.raises(ConfigError, match="encodings must be 'auto', 'paper' or a list"):
        make(encodings="jpeg")
    with pytest.raises((ConfigError, PlanError), match="no-such-policy"):
        make(policy="no-such-policy")


# --- datasets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_of_datasets(root: Path, make: Any, policy: str, agent: Agent) -> None:
    other = make_tree(root.parent / "other", 10, classes=2)
    parts = [Subset(folder(root), [9, 4, 30]), folder(other, eval_transform()), folder(root, eval_transform())]
    whole = ConcatDataset(parts)
    dataset = Subset(whole, [0, 5, 20, 2, 12, 1, 1])
    expected = run_epoch(OffloadingDataLoader(dataset, batch_size=3, policy="no-off", seed=2))
    for workers in (0, 2):
        loader = make(dataset, agent=agent.address("above"), policy=policy, num_workers=workers, seed=2)
        assert samples_of(loader) == expected
        assert loader.report().as_dict()["fallbacks"] == 0


def test_a_dataset_of_the_protocol_is_what_it_says_itself(root: Path, make: Any) -> None:
    dataset = PlainPictures(root, eval_transform())
    assert samples_of(make(dataset, num_workers=1)) == samples_of(DataLoader(dataset, 7))


@pytest.mark.parametrize("policy", POLICIES)
def test_target_transforms(root: Path, make: Any, policy: str) -> None:
    dataset = folder(root, target_transform=noisy_target)
    expected = run_epoch(OffloadingDataLoader(dataset, batch_size=5, policy="no-off", seed=2))
    assert samples_of(make(dataset, policy=policy, num_workers=2, seed=2)) == expected
    assert len({target % 1 for _, target in expected}) == FILES, "each sample draws its own numbers"
    assert [digest for digest, _ in samples_of(make(policy=policy, seed=2))] == [digest for digest, _ in expected]


class Counting:
    """Gives the number of its calls so far, and a draw from a generator of its own: user code with a state."""

    def __init__(self) -> None:
        self.calls, self.generator = 0, np.random.default_rng(7)

    def __call__(self, value: Any) -> torch.Tensor:
        self.calls += 1
        return torch.tensor([self.calls, self.generator.random()])


class CountingTargets(PlainPictures):
    """The OffloadableDataset protocol, with labels that count."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.counting = Counting()

    def target(self, index: int) -> Any:
        return self.counting(index)


def counting(root: Path, where: str) -> Any:
    """A dataset of unlike pictures (answers overtake one another) whose own code counts its calls."""
    if where == "transform":
        return folder(root, v1.Compose([v1.CenterCrop(32), Counting()]))
    if where == "target_transform":
        return folder(root, eval_transform(), target_transform=Counting())
    return CountingTargets(root, eval_transform())


@pytest.mark.parametrize("policy", ["no-off", "all-off", "auto"])
@pytest.mark.parametrize("where", ["transform", "target_transform", "target"])
def test_code_with_a_state_sees_each_batch_in_its_order(
    root: Path, make: Any, where: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "next", last_first(Session.next))
    drawn = [n for n in range(len(counting(root, where))) for _ in range(2)]
    place = 0 if where == "transform" else 1
    arguments: dict[str, Any] = {"batch_size": 16, "sampler": drawn, "num_workers": 1}
    expected = [batch[place] for batch in DataLoader(counting(root, where), **arguments)]
    found = [batch[place] for batch in make(counting(root, where), policy=policy, **arguments)]
    assert all(map(torch.equal, found, expected)) and len(found) == len(expected)


def last_first(following: Any) -> Any:
    """A session whose replies overtake one another: of those that may come in any order the last one comes first."""

    def overtaking(session: Any, batch: Any, position: int | None = None) -> Any:
        return following(session, batch, session.missing(batch) - 1 if position is None else position)

    return overtaking


def test_pictures_without_tensors(root: Path, make: Any) -> None:
    dataset = folder(root, v1.Compose([v1.RandomCrop(32, pad_if_needed=True)]))

    def run(**arguments: Any) -> list[tuple[str, Any]]:
        batches = make(dataset, seed=1, collate_fn=as_list, **arguments)
        return [(digest_of(image), target) for batch in batches for image, target in batch]

    plain = run(agent=None)
    for policy in POLICIES:
        assert run(policy=policy) == plain


def test_a_folder_without_transform(root: Path, make: Any) -> None:
    dataset = ImageFolder(str(root))
    found = [(digest_of(i), t) for batch in make(dataset, policy="all-off", collate_fn=as_list) for i, t in batch]
    assert found == [(digest_of(image), target) for image, target in dataset]


def test_an_empty_dataset(root: Path, make: Any) -> None:
    assert samples_of(make(Subset(folder(root), []))) == []


class OwnGetItem(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target + 100


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_cannot_be_offloaded_runs_as_in_dataloader(root: Path, make: Any, workers: int) -> None:
    dataset = OwnGetItem(str(root), train_transform())
    runs = []
    for build in (DataLoader, OffloadingDataLoader):
        torch.manual_seed(2)
        loader: Any = build(dataset, batch_size=7, shuffle=True, num_workers=workers)
        runs.append([samples_of(loader) for _ in range(2)] + [torch.get_rng_state().tolist()])
    assert runs[0] == runs[1]
    report = loader.report().as_dict()
    assert not report["offloading"]
    note = report["notes"][0]
    assert note.startswith("runs as a plain DataLoader: OwnGetItem has a __getitem__ of its own; it lacks key(index)")


# --- a remote folder ------------------------------------------------------------------------------------------


def test_a_remote_folder_is_like_the_folder(root: Path, agent: Agent) -> None:
    remote, here = RemoteImageFolder(agent.address(), transform=eval_transform()), folder(root, eval_transform())
    for name in ("classes", "class_to_idx", "targets"):
        assert getattr(remote, name) == getattr(here, name)
    assert [(path.removeprefix(agent.address()), t) for path, t in remote.samples] == [
        (path.removeprefix(str(root)), t) for path, t in here.samples
    ]
    assert remote.imgs == remote.samples
    assert len(remote) == len(here)
    for index in (0, 17, -1):
        image, target = remote[index]
        assert (digest_of(image), target) == (digest_of(here[index][0]), here[index][1])
    with pytest.raises(IndexError):
        remote[FILES]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader_over_a_remote_folder(root: Path, agent: Agent, workers: int) -> None:
    remote = RemoteImageFolder(agent.address(), transform=eval_transform())
    remote[0]
    loader = DataLoader(remote, 7, num_workers=workers)
    assert samples_of(loader) == samples_of(DataLoader(folder(root, eval_transform()), 7))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("named", [True, False], ids=["agent given", "its own agent"])
def test_a_remote_folder_in_the_loader(root: Path, make: Any, agent: Agent, policy: str, named: bool) -> None:
    remote = RemoteImageFolder(agent.address(), transform=train_transform())
    loader = make(remote, agent=agent.address() if named else None, policy=policy, num_workers=2, seed=3)
    assert samples_of(loader) == reference(root)


def test_remote_folders_below_one_another(root: Path, make: Any, agent: Agent) -> None:
    """Each knows its own folder; the loader's address only has to hold them all."""
    above = RemoteImageFolder(agent.address(f"above/{root.name}"), transform=train_transform())
    assert samples_of(make(above, agent=agent.address("above"), seed=3)) == reference(root)
    assert samples_of(make(above, agent=agent.address(f"above/{root.name}"), seed=3)) == reference(root)
    make_tree(root.parent / "twin", 10, classes=2)
    twin = RemoteImageFolder(agent.address("above/twin"), transform=train_transform())
    both = ConcatDataset([above, twin])
    expected = ConcatDataset([folder(root), folder(root.parent / "twin")])
    found = samples_of(make(both, agent=agent.address("above"), seed=3, policy="all-off"))
    assert found == run_epoch(OffloadingDataLoader(expected, 7, policy="no-off", seed=3))
    with pytest.raises(ConfigError, match="above/twin"):
        next(iter(make(both, agent=agent.address(f"above/{root.name}"), seed=3)))


# --- reports, and pipelines that change -----------------------------------------------------------------------


def test_an_op_that_is_not_registered_stays_at_the_loader(root: Path, make: Any) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.Lambda(np.array), v1.ToTensor(), times_two])
    dataset = folder(root, transform)
    expected = run_epoch(OffloadingDataLoader(dataset, batch_size=5, policy="no-off", seed=2))
    loader = make(dataset, policy="all-off", num_workers=1, seed=2)
    assert samples_of(loader) == expected
    report = loader.report().as_dict()
    assert report["cuts"] == {2: FILES}
    assert any("Lambda" in note and "not registered" in note for note in report["notes"])


class Refusing:
    """A user's transform that fails."""

    def __call__(self, image: Any) -> Any:
        raise ValueError("of the user's own")


@pytest.mark.filterwarnings("ignore:No op but decoding can run")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("there", [True, False], ids=["agent", "alone"])
def test_an_error_of_the_user_is_not_buried(root: Path, make: Any, there: bool, workers: int) -> None:
    given = {} if there else {"agent": None}
    loader = make(folder(root, v1.Compose([Refusing()])), num_workers=workers, policy="all-off", **given)
    with pytest.raises(ValueError, match="of the user's own") as raised:
        list(loader)
    shown = "".join(traceback.format_exception(raised.value))
    files = re.findall(r'File "(.*)", line', shown)
    own = [one for one in files if one.startswith(f"{PACKAGE}{os.sep}")]
    assert len(own) <= 2 and files[-1] == __file__
    assert "in op 1 (Refusing) of the pipeline" in shown and "key 'class_" in shown, "what is needed to look for it"


def test_the_report_counts_what_crossed_the_wire(root: Path, make: Any) -> None:
    loader = make(policy="no-off", num_workers=2)
    list(loader)
    report = loader.report().as_dict()
    nbytes = sum(os.path.getsize(path) for path, _ in loader.dataset.samples)
    assert report["file_bytes"] == nbytes
    assert nbytes < report["wire_bytes"] < nbytes + 200 * FILES
    assert report["choices"] == {"file": FILES} and report["cuts"] == {0: FILES}
    loader = make(policy="resize-off", num_workers=0)
    list(loader)
    report = loader.report().as_dict()
    pixels = FILES * 48 * 48 * 3
    assert pixels < report["wire_bytes"] < pixels + 200 * FILES
    assert report["loader_cpu_s"] > 0 and report["agent_cpu_s"] > 0 and report["seconds"] > 0
    assert "resize-off" in str(loader.report())


def test_the_report_of_an_epoch_that_runs(make: Any) -> None:
    loader = make(batch_size=8, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    assert loader.report().as_dict()["samples"] == 8


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", ["replaced", "step", "lambda", "behind", "parameter", "appended", "target"])
def test_a_transform_that_changes_between_epochs_is_followed(root: Path, make: Any, change: str, workers: int) -> None:
    def build() -> ImageFolder:
        steps = [v1.RandomResizedCrop(32), v1.ToTensor(), v1.Lambda(times_two), v1.Normalize([0.1] * 3, [0.2] * 3)]
        return folder(root, v1.Compose(steps), target_transform=int)

    def alter(dataset: Any) -> None:
        steps = dataset.transform.transforms
        if change == "replaced":
            dataset.transform = eval_transform(40)
        elif change == "step":
            steps[0] = v1.Resize((20, 30))
        elif change == "lambda":
            steps[2] = v1.Lambda(torch.neg)
        elif change == "behind":
            steps[3] = v1.Normalize([0.5] * 3, [0.5] * 3)
        elif change == "parameter":
            steps[0].size = (24, 24)
        elif change == "appended":
            steps.append(times_two)
        else:
            dataset.target_transform = _negative

    fresh = build()
    alter(fresh)
    expected_loader = OffloadingDataLoader(fresh, batch_size=5, policy="no-off", seed=2)
    expected_loader.set_epoch(1)
    expected = run_epoch(expected_loader)
    dataset = build()
    loader = make(dataset, policy="all-off", num_workers=workers, seed=2)
    first = samples_of(loader)
    alter(dataset)
    second = samples_of(loader)
    assert second == expected
    assert second != first


def _negative(target: int) -> int:
    return -1 - target


def test_the_module_s_helpers_do_not_hide_a_difference() -> None:
    a, b = torch.zeros(3), torch.zeros(3)
    b[1] = -0.0
    assert digest_of(a) != digest_of(b) and digest_of(a) != digest_of(a.double())
    assert loaders.samples_of([(a[None], torch.tensor([1]))]) != loaders.samples_of([(a[None], torch.tensor([2]))])
