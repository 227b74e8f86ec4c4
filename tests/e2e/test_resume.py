"""A state taken anywhere in an epoch, loaded into a loader of any other form, gives the rest of it, bit by bit."""

from __future__ import annotations

import io
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from tests.support.agents import until
from tests.support.loaders import as_list, digest_of
from tests.support.pictures import folder, make_tree

FILES = 23
N = FILES
SMALL = v1.Compose([v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor()])
LOADER: dict[str, Any] = {"policy": "all-off", "batch_size": 5}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures: there are many epochs."""
    return make_tree(tmp_path_factory.mktemp("all") / "pictures", FILES, sides=(16, 40))


# --- samplers -------------------------------------------------------------------------------------------------


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Numbers(Dataset[int]):
    """Nothing to offload."""

    def __init__(self, length: int = N) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Eager(Sampler[int]):
    """Draws from a global generator when it is asked for an iterator."""

    def __init__(self, draw: Callable[[], list[int]]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())

    def __len__(self) -> int:
        return N


class Counting(Sampler[int]):
    """Says by itself where it stands, as torchdata asks of samplers; the order differs from epoch to epoch."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.epoch).sample(range(N), N)
        for index in order[self.at :]:
            self.at += 1
            yield index
        self.epoch, self.at = self.epoch + 1, 0

    def __len__(self) -> int:
        return N

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class Ended(DistributedSampler[int]):
    """As torchdata's StatefulDistributedSampler: between epochs its state says that it has ended."""

    def __init__(self) -> None:
        super().__init__(Numbers(), num_replicas=1, rank=0)
        self.given = 0
        self.start: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.given, self.start = self.start or 0, None
        for index in itertools.islice(super().__iter__(), self.given, None):
            self.given += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["given"]


class Batches:
    """A batch sampler of one's own: batches of 1, 2, 3 ... in an order from a generator of another library."""

    def __init__(self, first: int = 1) -> None:
        self.rng = np.random.default_rng(4)
        self.first = first

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(self.rng.permutation(N).tolist())
        for size in itertools.count(self.first):
            batch = list(itertools.islice(order, size))
            if not batch:
                return
            yield batch


class Endless:
    """Draws without an end, one index at a time, from a generator of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(8)

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.rng.randrange(N)


class Rewinding:
    """Its own iterator, which `iter()` begins anew: as Lightning's is for `predict`."""

    def __iter__(self) -> Rewinding:
        self.entries = iter(torch.randperm(N).reshape(-1, 1).tolist())
        return self

    def __next__(self) -> list[int]:
        return next(self.entries)

    def __len__(self) -> int:
        return N


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "shuffle, a generator": lambda: {"shuffle": True, "generator": seeded()},
    "two generators": lambda: {"sampler": RandomSampler(range(N), generator=seeded()), "generator": seeded(2)},
    "in turn": lambda: {},
    "replacement": lambda: {"sampler": RandomSampler(range(N), replacement=True, num_samples=70, generator=seeded())},
    "replacement, no generator": lambda: {"sampler": RandomSampler(range(N), replacement=True)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(0, N, 2))},
    "weighted": lambda: {"sampler": WeightedRandomSampler([9.0, *[1.0] * (N - 1)], 30)},
    "distributed": lambda: {"sampler": DistributedSampler(Numbers(), num_replicas=2, rank=1)},
    "eager torch": lambda: {"sampler": Eager(lambda: torch.randperm(N).tolist())},
    "eager numpy": lambda: {"sampler": Eager(lambda: np.random.permutation(N).tolist())},
    "eager python": lambda: {"sampler": Eager(lambda: random.sample(range(N), N))},
    "eager batches": lambda: {"batch_sampler": Eager(lambda: torch.randperm(N).reshape(-1, 1).tolist())},
    "eager singles": lambda: {"sampler": Eager(lambda: torch.randperm(N).tolist()), "batch_size": None},
    "with a state": lambda: {"sampler": Counting()},
    "with a state that has ended": lambda: {"sampler": Ended()},
    "its own iterator": lambda: {"batch_sampler": Rewinding()},
    "own batches": lambda: {"batch_sampler": Batches()},
    "drop last": lambda: {"shuffle": True, "drop_last": True},
    "singles": lambda: {"shuffle": True, "batch_size": None},
    "shards": lambda: {"shuffle": True, "shard": True},
    "shards, singles": lambda: {"shuffle": True, "shard": True, "batch_size": None},
    "a list": lambda: {"sampler": [*range(N), *range(N)]},
    "soon again": lambda: {"sampler": [0, 1, 2, 3, 4, 5, 1, 6, 7, 1, *range(8, N), 0]},
}


@pytest.fixture
def build(make: Any, root: Path) -> Callable[..., Any]:
    """Makes loaders with one of `SAMPLERS`, without an agent, each as in a process of its own."""

    def built(name: str = "shuffle", dataset: Any = None, **more: Any) -> Any:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        arguments = {"agent": None, "collate_fn": as_samples, **SAMPLERS[name](), **more}
        if "batch_sampler" in arguments:
            arguments["batch_size"] = 1
        return make(folder(root, SMALL) if dataset is None else dataset, **arguments)

    return built


def as_samples(batch: Any) -> list[tuple[str, int]]:
    """Digests in place of pictures; a sample alone is a batch of one."""
    return [(digest_of(image), label) for image, label in (batch if isinstance(batch, list) else [batch])]


def flat(batches: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(batches))


def scrambled() -> None:
    """Draw from the global generators, as another process would have."""
    torch.rand(7), np.random.rand(7), random.random()


def kept(state: Any) -> Any:
    """Through a file, as checkpoints are written and read today."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def with_states(loader: Any, most: int = 10**6) -> tuple[list[Any], list[Any]]:
    """An epoch, and the state before each of its batches, and behind the last."""
    batches = iter(loader)
    found, states = [], [loader.state_dict()]
    for batch in itertools.islice(batches, most):
        found.append(batch)
        states.append(loader.state_dict())
    return found, states


def two(loader: Any) -> list[Any]:
    return list(itertools.islice(loader, 2))


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_cut(build: Any, name: str) -> None:
    loader = build(name)
    first = loader.state_dict()
    before = list(loader)
    between = loader.state_dict()
    whole, states = with_states(loader)
    after = loader.state_dict()
    following = two(loader)
    assert following != whole[:2] or name in ("in turn", "a list", "soon again")
    assert all(state == states[0] or state["samples"] for state in states) and len(whole) > 2

    def goes_on(state: Any, expected: list[Any], then: list[Any]) -> None:
        other = build(name)
        scrambled()
        other.load_state_dict(kept(state))
        if name != "with a state that has ended":
            assert other.state_dict() == state
        assert list(other) == expected and two(other) == then

    for cut, state in enumerate(states):
        goes_on(state, whole[cut:], following)
    goes_on(first, before, whole[:2])
    goes_on(between, whole, following)
    other = build(name)
    other.load_state_dict(kept(after))
    assert two(other) == following


CHANGES: dict[str, dict[str, Any]] = {
    "other batches": {"batch_size": 3},
    "workers": {"num_workers": 2},
    "more workers, more prefetch, other batches": {"num_workers": 2, "prefetch_factor": 5, "batch_size": 2},
    "persistent workers": {"num_workers": 1, "persistent_workers": True},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["shuffle", "own batches", "replacement"])
def test_a_loader_of_another_form(build: Any, name: str, change: str) -> None:
    """Taken with workers, which prefetch, and loaded without; and the other way round."""
    more = {key: value for key, value in CHANGES[change].items() if key != "batch_size" or name != "own batches"}
    for one, other in (({}, more), (more, {}), (more, more)):
        loader = build(name, **one)
        before = flat(loader)
        batches = iter(loader)
        begun = flat(itertools.islice(batches, 2))
        state = kept(loader.state_dict())
        rest, following = flat(batches), flat(itertools.islice(loader, 3))
        again = build(name, **other)
        scrambled()
        again.load_state_dict(state)
        assert flat(again) == rest and len(before) == len(begun + rest)
        then = flat(itertools.islice(again, 3))
        if one.get("persistent_workers") == other.get("persistent_workers"):  # for which torch draws one number less
            assert then and all(ours == theirs for ours, theirs in zip(then, following, strict=False))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_agent_policies_and_encodings(build: Any, agent: Any, workers: int) -> None:
    forms: list[dict[str, Any]] = [
        {"agent": None},
        {"agent": agent.address(), "policy": "all-off"},
        {"agent": agent.address(), "policy": "auto", "encodings": "paper"},
        {"agent": agent.address(), "policy": "resize-off", "batch_size": 4},
    ]
    whole = flat(build(num_workers=workers))
    taken: list[Any] = []
    state = None
    for form in forms:  # each goes on where the one before was stopped
        loader = build(num_workers=workers, **form)
        if state is not None:
            scrambled()
            loader.load_state_dict(state)
        batches = iter(loader)
        taken += next(batches)
        state = kept(loader.state_dict())
        del batches
        loader.close()
    assert taken == whole[: len(taken)] and len(taken) == 19
    last = build()
    last.load_state_dict(state)
    assert taken + flat(last) == whole


def test_the_seed_comes_with_the_state(build: Any) -> None:
    loader = build("in turn")
    batches = iter(loader)
    next(batches)
    other = build("in turn")
    scrambled()
    assert flat(other) != flat(build("in turn"))  # it has drawn a seed, which gives way
    other.load_state_dict(loader.state_dict())
    assert flat(other) == flat(batches)


def test_an_endless_sampler(build: Any) -> None:
    """Samples that come again go on to be augmented anew."""
    whole, states = with_states(build("in turn", sampler=Endless()), 12)
    for cut in (1, 5, 11):
        other = build("in turn", sampler=Endless())
        other.load_state_dict(states[cut])
        assert list(itertools.islice(other, 12 - cut)) == whole[cut:]


@pytest.mark.parametrize("offloaded", [True, False])
def test_the_length_is_that_of_a_whole_epoch_as_with_torchdata(build: Any, offloaded: bool) -> None:
    def made() -> Any:
        if offloaded:
            return build("in turn", snapshot_every_n_steps=3)
        return OffloadingDataLoader(Numbers(), 4, collate_fn=list, snapshot_every_n_steps=3)

    loader = made()
    batches = iter(loader)
    next(batches), next(batches)
    other = made()
    other.load_state_dict(kept(loader.state_dict()))
    rest = iter(other)
    assert len(other) == len(rest) == len(loader) == 2 + len(list(rest))
    assert other.snapshot_every_n_steps == 3


@pytest.mark.parametrize("form", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_a_dataset_that_cannot_be_offloaded(form: dict[str, Any]) -> None:
    def build() -> Any:
        return OffloadingDataLoader(Numbers(), 4, shuffle=True, collate_fn=list, **form)

    loader = build()
    whole, states = with_states(loader)
    following = list(loader)
    assert sorted(flat(whole)) == list(range(N)) and len(iter(loader)) == 6
    for cut in (0, 3, 6):
        other = build()
        scrambled()
        other.load_state_dict(kept(states[cut]))
        assert list(other) == whole[cut:] and list(other) == following
        other.close()
    loader.close()


# What torchdata's own tests ask of its loader for map-style datasets, where the ones above do not.


@pytest.mark.parametrize(
    "form", [{}, {"batch_size": None}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
@pytest.mark.parametrize("offloadable", [True, False])
def test_the_loader_that_gave_a_state_takes_it_back(build: Any, offloadable: bool, form: dict[str, Any]) -> None:
    """With an iterator open, behind the epoch, from its beginning, and each of them twice; through JSON."""
    what = {} if offloadable else {"dataset": Numbers(), "collate_fn": as_list}
    loader = build(**what, **form)
    batches = iter(loader)
    first = loader.state_dict()
    begun = list(itertools.islice(batches, 3))
    middle = json.loads(json.dumps(loader.state_dict()))
    loader.load_state_dict(middle)
    whole = begun + list(loader)
    after = loader.state_dict()
    following = list(loader)
    next(iter(loader))
    for state, expected in ((first, whole), (middle, whole[3:]), (after, following), (middle, whole[3:])):
        loader.load_state_dict(state)
        loader.load_state_dict(state)
        assert list(loader) == expected


class Drawing(Numbers):
    """A map-style dataset with a state: it draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(1)

    def __getitem__(self, index: int) -> int:
        return 100 * index + self.generator.randrange(100)

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.generator.getstate()
        return {"generator": [version, list(words), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["generator"]
        self.generator.setstate((version, tuple(words), gauss))


FORMS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2},
    "many workers": {"num_workers": 3, "prefetch_factor": 3},
    "workers that persist": {"num_workers": 2, "persistent_workers": True},
    "workers of a forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "singles": {"num_workers": 2, "batch_size": None},
    "prefetched": {"num_workers": 2, "device_prefetch": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_map_style_dataset_with_a_state_of_its_own(form: str) -> None:
    """Each worker's copy has another one, and those that have given no batch yet have none that was told."""

    def build() -> Any:
        torch.manual_seed(5)
        form_of = {"batch_size": 4, "collate_fn": as_list, "generator": seeded(3), **FORMS[form]}
        return OffloadingDataLoader(Drawing(), shuffle=True, **form_of)

    loader = build()
    whole, states = with_states(loader)
    between = loader.state_dict()
    following = list(loader)
    cuts = [0, 1, 2, len(whole) // 2] if form != "workers of a forkserver" else [1]
    for cut in cuts:
        other = build()
        scrambled()
        other.load_state_dict(kept(states[cut]))
        assert other.state_dict() == states[cut]
        batches = iter(other)
        found, again = list(itertools.islice(batches, 2)), kept(other.state_dict())
        found += batches
        assert found == whole[cut:] and list(other) == following
        other.load_state_dict(again)  # with workers there
        assert list(other) == whole[cut + 2 :] and list(other) == following
        other.close()
    other = build()
    other.load_state_dict(kept(between))
    assert list(other) == following
    other.close()
    loader.close()


def test_copies_in_workers_that_persist_behind_an_epoch_that_was_left() -> None:
    """They had read ahead, which nobody has seen."""

    def build() -> Any:
        of_workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "generator": seeded(3)}
        return OffloadingDataLoader(Drawing(), 4, shuffle=True, collate_fn=as_list, **of_workers)

    loader = build()
    left = iter(loader)
    next(left)
    batches = iter(loader)
    state = kept(loader.state_dict())
    whole = list(batches)
    other = build()
    other.load_state_dict(state)
    assert list(other) == whole
    other.close()
    loader.close()


class Global(Numbers):
    """Draws from torch's global generator, which DataLoader seeds in each worker."""

    def __getitem__(self, index: int) -> int:
        return 100 * index + int(torch.randint(100, ()))

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["generator"])


def test_a_copy_that_has_given_no_batch_yet() -> None:
    """It begins with the random numbers that it had begun with."""

    def build() -> Any:
        return OffloadingDataLoader(Global(), 4, shuffle=True, collate_fn=list, num_workers=3)

    loader = build()
    whole, states = with_states(loader)
    for cut in (0, 1, 2):
        other = build()
        scrambled()
        other.load_state_dict(kept(states[cut]))
        assert list(other) == whole[cut:]


def test_a_copy_of_a_dataset_that_fails() -> None:
    class Broken(Drawing):
        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise KeyError(index)
            return super().__getitem__(index)

    def build() -> Any:
        return OffloadingDataLoader(Broken(), 4, collate_fn=list, num_workers=2)

    loader = build()
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    state = loader.state_dict()
    rest = list(batches)
    other = build()
    other.load_state_dict(state)
    found = list(other)
    assert found[0] == rest[0] and len(found) == len(rest)


def test_as_many_copies_as_there_were() -> None:
    def build(workers: int) -> Any:
        return OffloadingDataLoader(Drawing(), 4, num_workers=workers)

    for taken, given in ((0, 2), (2, 0), (2, 3)):
        loader = build(taken)
        batches = iter(loader)
        next(batches)
        found = rf"num_workers must, because .* a Drawing .* as when the state was taken \({taken}\), got {given}; give"
        with pytest.raises(ConfigError, match=found):
            build(given).load_state_dict(loader.state_dict())


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < N:
            self.at += 1
            yield self.at
        self.at = 0


class Told(Stream):
    """Says where it stands."""

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_iterable_datasets() -> None:
    loader = OffloadingDataLoader(Told(), 4, collate_fn=list)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = OffloadingDataLoader(Told(), 4, collate_fn=list)
    other.load_state_dict(state)
    assert list(other) == list(batches)
    for dataset, workers in ((Stream(), 0), (Told(), 1)):
        with pytest.raises(ConfigError, match="a state needs a map-style dataset, or one with state_dict"):
            OffloadingDataLoader(dataset, 4, num_workers=workers).state_dict()
    with pytest.raises(ConfigError, match="state must come from a loader over a Stream"):
        OffloadingDataLoader(Stream(), 4).load_state_dict(state)


def test_a_sampler_that_draws_from_what_others_draw_from(build: Any) -> None:
    class Lazy(Eager):
        def __iter__(self) -> Iterator[int]:
            return (int(torch.randint(N, ())) for _ in range(N))

    loader = build("in turn", sampler=Lazy(list))
    loader.state_dict()
    batches = iter(loader)
    next(batches)
    next(batches)
    with pytest.raises(
        ConfigError, match=r"repeat its order .* got Lazy, .* global generator of torch .* give the sampler a gen"
    ):
        loader.state_dict()


def test_a_sampler_that_gives_others(build: Any) -> None:
    """What no generator shows is found when the order is drawn again."""

    class InPlace(Sampler[int]):
        def __init__(self) -> None:
            self.order = list(range(N))
            self.draw = [random.Random(3)]

        def __iter__(self) -> Iterator[int]:
            self.draw[0].shuffle(self.order)
            return iter(self.order)

        def __len__(self) -> int:
            return N

    loader = build("in turn", sampler=InPlace())
    list(loader)
    batches = iter(loader)
    next(batches)
    other = build("in turn", sampler=InPlace())
    other.load_state_dict(loader.state_dict())
    with pytest.raises(
        ConfigError, match=r"must repeat the 5 indices .* got other ones from InPlace; give the sampler a gen"
    ):
        next(iter(other))


class Held(Numbers):
    """One of its samples comes when a file is there, and the others at once."""

    def __init__(self, index: int, gate: Path) -> None:
        super().__init__()
        self.held, self.gate = index, gate

    def __getitem__(self, index: int) -> int:
        if index == self.held:
            until(self.gate.exists, "the gate is open", 30.0)
        return index


class HeldPicture(torch.nn.Module):
    """The same as a transform, of the picture that begins with these pixels."""

    def __init__(self, pixels: bytes, gate: Path) -> None:
        super().__init__()
        self.pixels, self.gate = pixels, gate

    def forward(self, image: Any) -> Any:
        if image.tobytes().startswith(self.pixels):
            until(self.gate.exists, "the gate is open", 30.0)
        return image


def one_held(root: Path, index: int, gate: Path, offloadable: bool) -> Any:
    """A dataset of which a sample is held back."""
    if not offloadable:
        return Held(index, gate)
    held = HeldPicture(ImageFolder(str(root))[index][0].tobytes()[:300], gate)
    return folder(root, v1.Compose([held, *SMALL.transforms]))


@pytest.mark.parametrize("offloadable", [True, False])
@pytest.mark.parametrize("name", ["in turn", "shuffle", "own batches", "soon again"])
def test_in_order_false(build: Any, root: Path, tmp_path: Path, name: str, offloadable: bool) -> None:
    """What had not come when a state was taken, though later batches had, comes first in the loader that goes on."""
    what = {"batch_size": 2, "collate_fn": as_samples if offloadable else as_list}
    order = flat(build(name, Numbers(), collate_fn=as_list))
    (tmp_path / "open").touch()
    expected = flat(build(name, one_held(root, order[0], tmp_path / "open", offloadable), **what))

    def with_one_held(gate: Path, **form: Any) -> Any:
        return build(name, one_held(root, order[0], gate, offloadable), **{**what, **form})

    as_made = {"in_order": False, "num_workers": 2}
    gate = tmp_path / "first"
    loader = with_one_held(gate, **as_made)
    assert loader.state_dict()["missing"] == []
    batches = iter(loader)
    came = flat(itertools.islice(batches, 3))
    state = kept(loader.state_dict())
    gate.touch()
    assert state["missing"][0][0] == 0 and expected[0] not in came
    assert sorted(came + flat(batches)) == sorted(expected)
    for form in ({}, {"num_workers": 2}, {"batch_size": 3} if name != "own batches" else {}):
        other = with_one_held(gate, **form)
        scrambled()
        other.load_state_dict(state)
        rest = iter(other)
        some = flat(itertools.islice(rest, 1))  # and goes on once more, with something owed still, maybe
        assert some[0] == expected[0]
        again = kept(other.state_dict())
        assert sorted(came + some + flat(rest)) == sorted(expected)
        other.load_state_dict(again)
        assert sorted(came + some + flat(other)) == sorted(expected)
    gate = tmp_path / "second"
    other = with_one_held(gate, **as_made)
    other.load_state_dict(state)
    rest = iter(other)
    more = flat(itertools.islice(rest, 2))
    again = kept(other.state_dict())
    gate.touch()
    assert expected[0] not in more and sorted(came + more + flat(rest)) == sorted(expected)
    last = with_one_held(gate)
    last.load_state_dict(again)
    assert sorted(came + more + flat(last)) == sorted(expected)


@pytest.mark.parametrize("of", ["shards", "copies"])
def test_in_order_false_where_nobody_knows(build: Any, of: str) -> None:
    more = {"shard": True} if of == "shards" else {"dataset": Drawing(), "collate_fn": as_list}
    loader = build("in turn", in_order=False, num_workers=2, **more)
    loader.state_dict()
    batches = iter(loader)
    next(batches)
    with pytest.raises(ConfigError, match="in_order must be True"):
        loader.state_dict()


def test_what_is_refused(build: Any) -> None:
    loader = build(seed=3)
    next(iter(loader))
    state = loader.state_dict()
    for of, found in (
        ({"seed": 4}, r"seed must be the same as when .* \(3\), got 4"),
        ({"name": "in turn"}, r"RandomSampler\), got Seq"),
    ):
        with pytest.raises(ConfigError, match=found):
            build(**of).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"dataset must have as many samples .* \(23\), got 22"):
        build(dataset=Numbers(22), seed=3).load_state_dict(state)
    for wrong in ({"_num_yielded": 3}, None, []):
        with pytest.raises(ConfigError, match="state must come from state_dict"):
            build().load_state_dict(wrong)


def test_another_epoch_is_begun_after_all(build: Any) -> None:
    loader = build("in turn", sampler=DistributedSampler(Numbers(), 1, 0))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    other = build("in turn", sampler=DistributedSampler(Numbers(), 1, 0))
    other.load_state_dict(state)
    other.set_epoch(0)  # as loops do that know in which epoch they go on
    assert list(other) == rest
    other.load_state_dict(state)
    other.set_epoch(1)
    assert len(list(other)) == 5


def test_profiling_leaves_the_place(build: Any) -> None:
    loader = build()
    whole, states = with_states(loader)
    loader.load_state_dict(states[2])
    loader.measure()
    assert list(loader) == whole[2:]
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    loader.measure()
    assert loader.state_dict() == state


@pytest.mark.parametrize("when", [0, 1], ids=["first", "between"])
@pytest.mark.parametrize("workers", ["persist", "do not"])
def test_profiling_changes_no_order(root: Path, make: Any, workers: str, when: int) -> None:
    """Nor that of the epochs behind it, whose workers would have been there or not."""
    orders = []
    for measured in (False, True):
        torch.manual_seed(11)
        loader = make(folder(root, SMALL), shuffle=True, num_workers=1, persistent_workers=workers == "persist")
        found = []
        for epoch in range(3):
            if measured and epoch == when:
                loader.measure()
            found.append([targets.tolist() for _, targets in loader])
        orders.append(found)
        loader.close()
    assert orders[0] == orders[1]


def test_a_batch_that_fails_is_passed(build: Any) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 5:
                raise KeyError(index)
            return index

    loader = build("in turn", Broken(), collate_fn=list)
    batches = iter(loader)
    next(batches)
    with pytest.raises(KeyError):
        next(batches)
    other = build("in turn", Broken(), collate_fn=list)
    other.load_state_dict(loader.state_dict())
    assert next(iter(other))[0] == 10


def test_a_state_is_small_and_quick(build: Any) -> None:
    """Of 1.28 million samples, whatever draws their order."""
    data, large = Numbers(1_280_000), range(1_280_000)
    for of in (
        {"shuffle": True},
        {"shuffle": True, "generator": seeded()},
        {"sampler": RandomSampler(large, generator=seeded()), "generator": seeded(2)},
        {"sampler": Eager(lambda: np.random.permutation(N).tolist())},
        {"sampler": Eager(lambda: random.sample(range(N), N))},
    ):
        torch.manual_seed(0)
        loader: Any = OffloadingDataLoader(data, 16, **of)
        sizes = [len(json.dumps(loader.state_dict()))]
        batches = iter(loader)
        next(batches)
        took = []
        for _ in range(20):
            started = time.thread_time()
            sizes.append(len(json.dumps(loader.state_dict())))
            took.append(time.thread_time() - started)
        assert max(sizes) < 16_000, (of, sizes)
        assert min(took) < 1e-3, (of, took)
