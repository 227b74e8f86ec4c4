"""What is asked for is what happens, or a clear word: encodings, changed datasets, wrong keys, idle agents."""

from __future__ import annotations

import copy
import gc
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder, VisionDataset
from torchvision.datasets.folder import default_loader

from sophon_loader import OffloadingDataLoader, OffloadOptions, RemoteImageFolder
from sophon_loader.errors import ConfigError, OffloadWarning
from tests.support.agents import Agent, agent_for, until
from tests.support.loaders import QUICK, PlainPictures, samples_of
from tests.support.pictures import eval_transform, folder, make_tree, train_transform

FILES = 24
LOADER = {"batch_size": 5, "policy": "resize-off"}


def used(loader: Any, epochs: int = 1) -> set[str]:
    """The encodings of all samples."""
    found: set[str] = set()
    for _ in range(epochs):
        for _ in loader:
            pass
        found |= set(loader.report().as_dict()["choices"])
    return found


# --- encodings ------------------------------------------------------------------------------------------------

ALLOWED = [["file"], ["file", "pixels"], ["file", "array"], ["webp"], ["file", "webp"], ["pixels", "array"], []]


@pytest.mark.parametrize("allowed", ALLOWED, ids=lambda names: "+".join(names) or "none")
@pytest.mark.parametrize("policy", ["resize-off", "all-off", "no-off", "sophon", "auto", "fastflow"])
def test_only_encodings_that_are_allowed_cross(root: Path, make: Any, policy: str, allowed: list[str]) -> None:
    loader = make(policy=policy, encodings=allowed, num_workers=1, seed=3)
    found = used(loader, 2)
    assert found <= {*allowed, "file"}
    report = loader.report().as_dict()
    assert report["degraded"] == 0 and report["fallbacks"] == 0
    says_so = any("pixels nor array" in note for note in report["notes"])
    assert says_so == (not {"pixels", "array"} & set(allowed))


def test_what_is_allowed_is_used(make: Any) -> None:
    assert used(make(policy="all-off", encodings=["array"])) == {"array"}
    assert used(make(policy="all-off", encodings=["pixels"])) == {"pixels"}
    assert used(make(policy="resize-off", encodings=["array"])) == {"file"}


class WebpPolicy:
    """A user's own, which names what it likes."""

    name = "webp"
    needs_profile = False

    def plan(self, facts: Any) -> Any:
        from sophon_loader.decide.facts import Choice
        from sophon_loader.decide.plan import uniform_plan

        return uniform_plan(self.name, facts.samples, Choice(2, "webp"), "asks for webp")


def test_a_policy_of_the_user_s_is_held_to_it_too(make: Any) -> None:
    assert used(make(policy=WebpPolicy(), encodings="paper")) == {"pixels"}
    assert used(make(policy=WebpPolicy(), encodings=["file"])) == {"file"}
    assert used(make(policy=WebpPolicy())) == {"webp"}


# --- a dataset that is changed ----------------------------------------------------------------------------------


def plain(dataset: Any, **arguments: Any) -> list[tuple[str, Any]]:
    """What torch's DataLoader gives."""
    return samples_of(DataLoader(dataset, batch_size=5, **arguments))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_changed(root: Path, make: Any, workers: int) -> None:
    dataset = folder(root, eval_transform())
    loader = make(dataset, num_workers=workers)
    assert samples_of(loader) == plain(dataset, num_workers=2)
    path, _ = dataset.samples[7]
    dataset.samples[3] = (path, 99)  # in place
    assert samples_of(loader) == plain(dataset, num_workers=2)
    dataset.samples = dataset.samples[::2]
    assert len(loader) == 3 and samples_of(loader) == plain(dataset, num_workers=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_that_are_changed(root: Path, make: Any, workers: int) -> None:
    dataset: Any = Subset(folder(root, eval_transform()), [1, 2, 3])
    loader = make(dataset, num_workers=workers)
    assert samples_of(loader) == plain(dataset, num_workers=2)
    dataset.indices = [9, 8, 7, 6, 5]
    assert samples_of(loader) == plain(dataset, num_workers=2)
    dataset.indices[0] = 11
    assert samples_of(loader) == plain(dataset, num_workers=2)
    dataset.indices = torch.tensor([4, 5])
    assert samples_of(loader) == plain(dataset, num_workers=2)
    dataset.indices[1] = 1
    assert samples_of(loader) == plain(dataset, num_workers=2)


def grey(path: str) -> Image.Image:
    return default_loader(path).convert("L").convert("RGB")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_function_that_is_changed(root: Path, make: Any, workers: int) -> None:
    dataset = folder(root, eval_transform())
    loader = make(dataset, num_workers=workers)
    assert samples_of(loader) == plain(dataset, num_workers=2)
    dataset.loader = grey
    assert samples_of(loader) == plain(dataset, num_workers=2)
    assert "default loader" in str(loader.report().notes)


def test_persistent_workers_keep_what_they_started_with_as_in_torch(root: Path, make: Any) -> None:
    dataset = folder(root, eval_transform())
    loader = make(dataset, num_workers=1, persistent_workers=True)
    theirs = DataLoader(dataset, batch_size=5, num_workers=1, persistent_workers=True)
    before = samples_of(loader)
    assert before == samples_of(theirs)
    dataset.samples[3] = dataset.samples[7]
    assert samples_of(loader) == samples_of(theirs) == before


# --- worker_init_fn ----------------------------------------------------------------------------------------------


def changes_transform(worker: int) -> None:
    get_worker_info().dataset.transform = eval_transform(32)


def changes_parameter(worker: int) -> None:
    get_worker_info().dataset.transform.transforms[0].size = 40


def changes_samples(worker: int) -> None:
    dataset = get_worker_info().dataset
    dataset.samples = dataset.samples[::-1]


def changes_nothing_much(worker: int) -> None:
    info = get_worker_info()
    assert isinstance(info.dataset, ImageFolder) and info.dataset.loader is default_loader
    info.dataset.opened = worker


@pytest.mark.parametrize(
    ("change", "context"),
    [
        (changes_transform, "fork"),
        (changes_parameter, "fork"),
        (changes_samples, "fork"),
        (changes_parameter, "spawn"),
    ],
)
def test_a_worker_that_changes_its_dataset_is_refused(root: Path, make: Any, change: Any, context: str) -> None:
    loader = make(folder(root, eval_transform()), num_workers=1, worker_init_fn=change, multiprocessing_context=context)
    with pytest.raises(ConfigError, match="worker_init_fn must not change the"):
        next(iter(loader))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_sees_the_user_s_dataset(root: Path, make: Any, context: str) -> None:
    dataset = folder(root, eval_transform())
    loader = make(dataset, num_workers=1, worker_init_fn=changes_nothing_much, multiprocessing_context=context)
    assert samples_of(loader) == plain(dataset, num_workers=2)


class Scaled(PlainPictures):
    """Whose labels depend on an attribute."""

    scale = 1

    def target(self, index: int) -> int:
        return index * self.scale


def changes_scale(worker: int) -> None:
    get_worker_info().dataset.scale = 10


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_key_and_target_depend_on_may_be_changed(root: Path, make: Any, context: str) -> None:
    dataset = Scaled(root, eval_transform())
    arguments = {"num_workers": 1, "worker_init_fn": changes_scale, "multiprocessing_context": context}
    assert samples_of(make(dataset, **arguments)) == plain(dataset, **arguments)


# --- datasets that do more ---------------------------------------------------------------------------------------


class Triples(PlainPictures):
    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), index


class Grey(PlainPictures):
    def __getitem__(self, index: int) -> Any:
        with Image.open(os.path.join(self.root, self.keys[index])) as image:
            return self.transform(image.convert("L").convert("RGB")), self.target(index)


class Shifted(PlainPictures):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target + 1


class Texts(PlainPictures):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, str(target)


class Lists(PlainPictures):
    def __getitem__(self, index: int) -> Any:
        return list(super().__getitem__(index))


def with_label(image: Any, target: Any) -> Any:
    return v1.functional.to_tensor(image.resize((20, 20))), target * 2


class Joint(VisionDataset):
    """torchvision's way to transform image and label together."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(str(root), transforms=with_label)
        self.keys = PlainPictures(root, None).keys

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, index: int) -> str:
        return self.keys[index]

    def target(self, index: int) -> int:
        return index

    def __getitem__(self, index: int) -> Any:
        with Image.open(os.path.join(self.root, self.keys[index])) as image:
            return self.transforms(image.convert("RGB"), index)


@pytest.mark.parametrize("transform", [train_transform, eval_transform])
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Triples, "is a tuple of 3, not"),
        (Grey, r"\[0\] is a Tensor"),
        (Shifted, r"\[1\] is .* where target"),
        (Texts, r"\[1\] is '.*' \(str\)"),
        (Lists, "is a list of 2, not"),
        (Joint, r"\[0\] is a Tensor"),
    ],
)
def test_a_dataset_that_does_more_runs_by_its_own_code(
    root: Path, make: Any, kind: Any, says: str, transform: Any
) -> None:
    dataset = kind(root, transform())
    theirs = DataLoader(dataset, batch_size=5)
    loader = make(dataset)
    torch.manual_seed(5)
    ours = list(loader)
    torch.manual_seed(5)
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other) and len(one) == len(other)
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1]) if isinstance(one[1], torch.Tensor) else one[1] == other[1]
    for one in (loader, copy.deepcopy(loader)):
        iter(one)
        (note,) = [note for note in one.report().notes if "does more" in note]
        assert re.search(says, note) and "own code makes the samples, and the agent is asked" in note


def test_one_that_does_no_more_is_offloaded_and_draws_nothing_of_the_user_s(root: Path, make: Any) -> None:
    loader = make(PlainPictures(root, train_transform()))
    state = torch.get_rng_state()
    iter(loader)
    torch.set_rng_state(state)
    assert used(loader) == {"pixels"} and loader.report().offloading


class OwnRandomness:
    """A transform that is not the same twice under the same seeds."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        return v1.functional.to_tensor(image.resize((20, 20))) + self.calls


@pytest.mark.filterwarnings("ignore:No op but decoding can run")
def test_a_transform_with_a_counter_is_compared_by_types(root: Path, make: Any) -> None:
    loader = make(PlainPictures(root, OwnRandomness()))
    list(loader)
    assert loader.report().summary == "nothing offloaded: the agent could only decode: OwnRandomness is not registered"


# --- mistakes that each have a name ---------------------------------------------------------------------------------


class Keyed(PlainPictures):
    """Whose keys are made by a function."""

    def __init__(self, root: Path, make: Callable[[str], Any]) -> None:
        super().__init__(root, eval_transform())
        self.make = make

    def key(self, index: int) -> Any:
        return self.make(self.keys[index])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Path, "must be text, got PosixPath"),
        (lambda key: key.encode(), "must be text, got b'"),
        (lambda key: f"/data/{key}", "got the absolute path '/data/"),
        (lambda key: f"../pictures/{key}", "must stay below root"),
    ],
)
@pytest.mark.parametrize("where", ["agent", None])
def test_wrong_keys(root: Path, make: Any, change: Any, says: str, where: str | None) -> None:
    loader = make(Keyed(root, change), **({} if where else {"agent": None}))
    with pytest.raises(ConfigError, match=says) as caught:
        next(iter(loader))
    assert "add it to the address" not in str(caught.value)


def test_links_that_leave_the_export(tmp_path: Path) -> None:
    elsewhere, inside = tmp_path / "elsewhere", tmp_path / "inside"
    make_tree(elsewhere, 8)
    for path in elsewhere.rglob("*.jpg"):
        link = inside / path.relative_to(elsewhere)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    with agent_for(inside) as agent:
        loader = OffloadingDataLoader(folder(inside), agent=agent.address(), options=QUICK)
        with pytest.raises(ConfigError, match="a link that leaves") as caught:
            next(iter(loader))
        assert "add it to the address" not in str(caught.value)
        loader.close()


def test_a_wrong_folder_a_missing_file_and_another_version(root: Path, agent: Agent, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    loader = OffloadingDataLoader(folder(copy), agent=agent.address("above"), options=QUICK)
    with pytest.raises(ConfigError, match="add it to the address"):
        next(iter(loader))
    dataset = folder(copy)
    for number, says in ((0, "bring the agent's copy up to date"), (1, "make both copies of the same data")):
        path = Path(dataset.samples[number * 3][0])
        if number == 0:
            path = path.rename(path.with_name(f"{path.stem}a.jpg"))
        else:
            path.write_bytes(path.read_bytes() + b"x")
        changed = OffloadingDataLoader(folder(copy), agent=agent.address(), options=QUICK)
        with pytest.raises(ConfigError, match=says):
            next(iter(changed))
        changed.close()
        shutil.rmtree(copy)
        shutil.copytree(root, copy)
    loader.close()


# --- one warning, once --------------------------------------------------------------------------------------------


class OwnGetItem(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


def warned(block: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        block()
        gc.collect()
    return [str(one.message) for one in found if issubclass(one.category, OffloadWarning)]


def test_an_agent_for_a_dataset_that_cannot_be_offloaded(root: Path, agent: Agent) -> None:
    dataset = OwnGetItem(str(root), eval_transform())

    def build(options: OffloadOptions) -> None:
        loader = OffloadingDataLoader(dataset, agent=agent.address(), batch_size=5, options=options)
        for _ in range(2):
            list(loader)

    alone = OffloadOptions(record=False)
    with pytest.warns(OffloadWarning) as found:
        OffloadingDataLoader(dataset, agent=agent.address(), batch_size=5, options=alone).close()
    assert found[0].filename == __file__
    (text,) = warned(lambda: build(alone))
    assert "Nothing is offloaded" in text and "__getitem__" in text
    assert warned(lambda: build(OffloadOptions())) == [], "its pictures are asked for when it looks at them"
    assert warned(lambda: list(OffloadingDataLoader(dataset, batch_size=5))) == []


def test_a_loader_that_is_never_iterated_over(root: Path, agent: Agent) -> None:
    dataset = folder(root, eval_transform())

    def replaced() -> None:
        loader: Any = OffloadingDataLoader(dataset, agent=agent.address(), batch_size=5)
        loader = DataLoader(loader.dataset, batch_size=loader.batch_size)  # as a framework does
        list(loader)

    (text,) = warned(replaced)
    assert "never iterated over" in text and agent.address() in text
    assert warned(lambda: OffloadingDataLoader(dataset, batch_size=5) and None) == []
    assert warned(lambda: list(OffloadingDataLoader(dataset, agent=agent.address(), options=QUICK))) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_files_read_here_because_the_agent_is_gone(root: Path, workers: int) -> None:
    """Told once; the silence is waited for once, too, and an agent that comes back is used again."""
    with agent_for(root) as agent:
        loader = OffloadingDataLoader(
            folder(root), 5, agent=agent.address(), policy="resize-off", num_workers=workers, options=QUICK, seed=3
        )
        before = samples_of(loader)
        agent.kill()
        seconds: list[float] = []
        told: list[str] = []
        for _ in range(3):
            loader.set_epoch(0)
            told += warned(lambda: seconds.append(samples_of(loader) == before))
            report = loader.report().as_dict()
            assert report["fallbacks"] == FILES
            seconds.append(loader.report().totals.waited_s)
        assert [text for text in told if "does not answer" in text] == told and len(told) == 1
        assert seconds[0] and seconds[2] and seconds[4]
        assert max(seconds[3], seconds[5]) < seconds[1] / 3  # not waited for again
        agent.start()
        agent.ready()

        def used_again() -> bool:
            loader.set_epoch(0)
            assert samples_of(loader) == before
            return bool(loader.report().as_dict()["fallbacks"] == 0)

        until(used_again, "the agent is used again")
        loader.close()


def test_a_remote_folder_has_no_files_here_and_is_asked_again(root: Path) -> None:
    with agent_for(root) as agent:
        dataset = RemoteImageFolder(agent.address(), eval_transform(), options=QUICK)
        loader = OffloadingDataLoader(dataset, 5, agent=agent.address(), policy="resize-off", options=QUICK)
        before = samples_of(loader)
        agent.kill()
        with pytest.raises(ConnectionError):
            samples_of(loader)
        agent.start()
        assert samples_of(loader) == before
        loader.close()
