"""Frameworks that make loaders of their own: samples still come from the agent, and are those of a plain loop."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, default_collate
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from tests.pages.blocks import steps_of
from tests.support.agents import ROOT, Agent, agent_for, with_modules
from tests.support.loaders import samples_of
from tests.support.pictures import eval_transform, folder, train_transform
from tests.support.programs import Programs, Ran

FILES = 32
LOADER = {"batch_size": 4, "policy": "resize-off", "seed": 7}
RANKS = 2
EPOCHS = 2
PAGE = "docs/frameworks.md"
FRAMEWORKS = {
    "Plain loop": ("torch", 1),
    "Lightning": ("lightning", RANKS),
    "Fabric": ("lightning", RANKS),
    "accelerate": ("accelerate", RANKS),
    "Transformers": ("transformers", RANKS),
    "ignite": ("ignite", 1),
    "fastai": ("fastai", 1),
    "timm": ("timm", 1),
    "PyTorch's ImageNet example": ("torch", RANKS),
}
"""Headings of the page: what the program below each needs, and on how many ranks it is run here."""
ON_RANKS = {
    "max_epochs=2)": f"max_epochs=2, devices={RANKS})",
    "Fabric()": f"Fabric(devices={RANKS})",
    "Accelerator()": "Accelerator(cpu=True)",
    "dataloader_num_workers=2)": "dataloader_num_workers=2, use_cpu=True)",
}
"""What each finds by itself on a machine with as many GPUs."""
SEEN = """
import hashlib

SEEN = {"samples": 0, "digest": 0}
inputs, cross_entropy = [], loss_of
model.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))


def loss_of(outputs, labels):
    for image, label in zip(inputs.pop(), labels.tolist(), strict=True):
        content = hashlib.blake2b(image.contiguous().numpy().tobytes() + bytes([label]), digest_size=8).digest()
        SEEN["samples"] += 1
        SEEN["digest"] = (SEEN["digest"] + int.from_bytes(content, "big")) % (1 << 64)
    return cross_entropy(outputs, labels)
"""
"""Has the page's `task.py` add up digests of what the model is trained on."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with contextlib.closing(Programs()) as running:
        yield running


@pytest.fixture(scope="module")
def page(agent: Agent, root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The programs of the page, as printed but for the names of data and agent, and for what makes them repeatable."""
    text = (ROOT / PAGE).read_text()
    lines = text.splitlines()
    folder = tmp_path_factory.mktemp("page")
    given = f'agent="{agent.address()}", policy="resize-off", seed=7'
    found = {}
    for step in steps_of(text):
        code = step.text.replace('agent="tcp://fileserver:5555/imagenet"', given).replace(", seed=self.args.seed", "")
        code = code.replace("/mnt/imagenet/train", str(root))
        heading = next((line[3:] for line in reversed(lines[: step.line]) if line.startswith("## ")), "")
        path = folder / (step.argument or f"{heading.replace(' ', '_')}.py")
        assert not path.exists(), f"{heading} must have one program"
        path.write_text(code + (SEEN if step.argument == "task.py" else ""))
        found[heading] = path
    return found


def run(programs: Programs, page: dict[str, Path], heading: str, ranks: int) -> list[Ran]:
    """What each rank of a program of the page has done, and that all its samples came from the agent."""
    path = page[heading]
    if ranks > 1:
        code = path.read_text()
        for word, more in ON_RANKS.items():
            code = code.replace(word, more)
        path.write_text(code)
    done = programs.run(path, ranks=ranks)
    for one in done:
        assert one.status == 0 and "never iterated over" not in one.output, one.output
        reports = re.findall(r"(\d+) of (\d+) samples [a-z ]+ at the agent", one.output)
        assert len(reports) == (1 if heading == "fastai" else EPOCHS), one.output
        assert {*reports} == {(str(FILES // ranks),) * 2}
    return done


@pytest.fixture(scope="module")
def digest(programs: Programs, page: dict[str, Path]) -> int:
    """Of all samples of a plain loop."""
    (done,) = run(programs, page, "Plain loop", 1)
    assert done.seen["samples"] == EPOCHS * FILES
    return int(done.seen["digest"])


@pytest.mark.parametrize("heading", FRAMEWORKS)
def test_a_framework_offloads_and_trains_on_the_same_samples(
    programs: Programs, page: dict[str, Path], digest: int, heading: str
) -> None:
    needs, ranks = FRAMEWORKS[heading]
    pytest.importorskip(needs)
    if heading == "Plain loop":
        return
    done = run(programs, page, heading, ranks)
    if heading != "timm":  # whose transform draws other numbers
        assert sum(one.seen["digest"] for one in done) % (1 << 64) == digest
    assert {one.seen["samples"] for one in done} == {EPOCHS * FILES // ranks}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_ray_train_offloads_on_two_workers(page: dict[str, Path]) -> None:
    """Ray starts processes of its own, and takes a minute."""
    pytest.importorskip("ray.train", exc_type=ImportError)
    path = page["Ray Train"]
    environment = {**with_modules(path.parent), "RAY_DEDUP_LOGS": "0", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT}"
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "never iterated over" not in done.stderr, done.stderr
    reports = re.findall(rf"{FILES // RANKS} of {FILES // RANKS} samples [a-z ]+ at the agent", done.stdout)
    assert len(reports) == EPOCHS * RANKS, done.stdout


def test_every_program_of_the_page_is_run(page: dict[str, Path]) -> None:
    assert {*page} == {"", *FRAMEWORKS, "Ray Train"}


def test_timms_batches_are_the_same(root: Path, agent: Agent) -> None:
    """Without random numbers bit by bit, through timm's own collation and prefetcher."""
    timm_data = pytest.importorskip("timm.data")
    dataset = timm_data.create_dataset("", str(root))
    batches = timm_data.create_loader(dataset, 48, 8, num_workers=1, device=torch.device("cpu"))
    expected = samples_of(batches)
    names = ["batch_size", "sampler", "drop_last", "num_workers", "collate_fn", "pin_memory", "persistent_workers"]
    same = {name: getattr(batches.loader, name) for name in names}
    batches.loader = OffloadingDataLoader(dataset, **same, agent=agent.address(), policy="resize-off")
    assert samples_of(batches) == expected
    assert batches.loader.report().as_dict()["choices"] == {"pixels": FILES}
    batches.loader.close()


class TrainingPreset:
    """Of the form of `presets.py` in torchvision's references."""

    def __init__(self, *, crop_size: int, random_erase_prob: float = 0.0) -> None:
        steps = [v1.RandomResizedCrop(crop_size), v1.RandomHorizontalFlip(0.5), v1.TrivialAugmentWide()]
        steps += [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.RandomErasing(random_erase_prob)]
        self.transforms = v1.Compose(steps)

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class RepeatedAugmentation(Sampler[int]):
    """Gives each picture of the half that it draws twice, in an order that the epoch decides."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epoch = samples, 0

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        drawn = torch.randperm(self.samples, generator=generator)[: self.samples // 2]
        return iter(drawn.repeat_interleave(2).tolist())

    def __len__(self) -> int:
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_training_like_torchvisions_references(root: Path, make: Any) -> None:
    """Preset, repeated augmentation, mixup and CutMix in the collation: the same with an agent as without."""
    sampler = RepeatedAugmentation(FILES)
    mixed = v2.RandomChoice([v2.MixUp(num_classes=4, alpha=0.2), v2.CutMix(num_classes=4, alpha=1.0)])

    def collate(samples: list[Any]) -> Any:
        return mixed(*default_collate(samples))

    def epochs(**given: Any) -> tuple[list[Any], Any]:
        dataset = folder(root, TrainingPreset(crop_size=48, random_erase_prob=0.3))
        loader = make(dataset, sampler=sampler, collate_fn=collate, num_workers=2, **given)
        seen = []
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            torch.manual_seed(epoch)
            seen += [(images.clone(), targets.clone()) for images, targets in loader]
        return seen, loader.report().as_dict()

    expected, _ = epochs(agent=None)
    seen, report = epochs()
    assert report["choices"] == {"pixels": FILES} and len(seen) == EPOCHS * FILES // 4
    for one, other in zip(seen, expected, strict=True):
        assert all(map(torch.equal, one, other))
    assert seen[0][1].shape == (4, 4) and not torch.equal(seen[0][0][0], seen[0][0][1])


@pytest.mark.parametrize("several", [False, True])
def test_lightning_predicts_what_comes_from_the_agent(
    programs: Programs, agent: Agent, root: Path, several: bool
) -> None:
    pytest.importorskip("lightning")
    with agent_for(root) as other:
        names = [agent.address(), other.address()][: 1 + several]
        (done,) = programs.run("tests.support.predicting", ",".join(names), str(root))
    assert done.status == 0, done.output
    expected = [image for image, _ in samples_of(DataLoader(folder(root, eval_transform()), 4))]
    told = [json.loads(line) for line in done.output.splitlines() if line.startswith('{"')]
    assert [one["choices"] for one in told] == [{"pixels": FILES}] * 2
    assert [one["seen"] for one in told] == [expected] * 2


@pytest.mark.parametrize("kind", ["prepared", "unprepared"])
def test_a_trainer_of_transformers_goes_on_in_the_middle_of_an_epoch(
    programs: Programs, agent: Agent, kind: str
) -> None:
    """With accelerate's `skip_first_batches` the rest comes from a DataLoader of torch's, augmented otherwise."""
    pytest.importorskip("transformers")
    (done,) = programs.run("tests.support.resuming", agent.address(), kind)
    assert done.status == 0, done.output
    whole, rest = (json.loads(line)["seen"] for line in done.output.splitlines() if line.startswith('{"seen"'))
    assert len(set(whole)) == EPOCHS * FILES // 4 and rest == whole[8:]


@pytest.mark.parametrize("workers", [0, 2])
def test_seed_everything(make: Any, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """A loader without `seed=` follows Lightning's, also with the `worker_init_fn` that its Trainer gives loaders."""
    lightning = pytest.importorskip("lightning")
    from lightning.fabric.utilities.seed import pl_worker_init_function

    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # to be put back

    def epochs(seed: int, init: Any, **more: Any) -> list[Any]:
        lightning.seed_everything(seed, workers=True, verbose=False)
        loader = make(seed=None, shuffle=True, worker_init_fn=init, **more)
        return [samples_of(loader), samples_of(loader)]

    first = epochs(7, pl_worker_init_function, num_workers=workers)
    assert first == epochs(7, None, num_workers=2, agent=None) and first[0] != first[1]
    assert first != epochs(8, pl_worker_init_function, num_workers=workers)


def test_a_loader_made_anew_from_its_attributes_is_the_same(make: Any) -> None:
    """As Lightning and ignite do: every public attribute is an argument of the constructor."""
    loader = make(num_workers=1)
    left = {"batch_size", "sampler", "drop_last", "batch_sampler"}
    taken = {name: value for name, value in vars(loader).items() if not name.startswith("_") and name not in left}
    again = type(loader)(**{**taken, "batch_sampler": loader.batch_sampler})
    assert samples_of(again) == samples_of(loader)
    assert again.report().as_dict()["choices"] == loader.report().as_dict()["choices"] == {"pixels": FILES}
    again.close()


@pytest.mark.parametrize("name", ["agent", "policy", "encodings", "seed", "profile", "tail", "options"])
def test_an_argument_is_not_set_later(make: Any, name: str) -> None:
    """It would be ignored."""
    loader = make()
    with pytest.raises(ConfigError, match=f"{name} must be given to the constructor"):
        setattr(loader, name, None)
    assert hasattr(loader, name)


def test_accelerates_own_preparation_is_refused(make: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = make()
    with pytest.raises(ConfigError, match=r"sophon_loader\.integrations\.accelerate"):
        accelerate.data_loader.prepare_data_loader(loader) if loader._is_accelerate_prepared else None


def test_what_accelerate_has_prepared_offloads_then(root: Path, agent: Agent) -> None:
    accelerate = pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import offloading, skip_first_batches

    plain = DataLoader(folder(root, eval_transform()), 4, drop_last=True)
    expected = samples_of(plain)
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    loader = offloading(prepared, agent=agent.address(), policy="resize-off")
    assert loader is prepared and samples_of(loader) == expected
    assert loader.report().as_dict()["choices"] == {"pixels": FILES}
    assert offloading(loader, policy="no-off").policy == "no-off", "what is given goes before what it had"
    loader = offloading(loader, policy="resize-off")
    rest = skip_first_batches(loader, 2)
    assert samples_of(rest) == expected[8:] and set(rest.report().as_dict()["choices"]) == {"pixels"}
    other = skip_first_batches(plain, 2)
    assert type(other) is DataLoader and samples_of(other) == expected[8:]
    rest.close()
    loader.close()


def test_the_rest_of_an_epoch_of_a_loader_that_was_not_prepared(root: Path, make: Any) -> None:
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import skip_first_batches

    dataset = folder(root, train_transform())
    loader, other = make(dataset), make(dataset)
    whole = [samples_of(loader) for _ in range(2)]
    samples_of(other)
    rest = skip_first_batches(other, 2)
    assert samples_of(rest) == whole[1][8:] and set(rest.report().as_dict()["choices"]) == {"pixels"}
    rest.close()


def test_a_prepared_loader_goes_on_where_its_state_was_taken(root: Path, make: Any) -> None:
    """accelerate counts epochs itself, and tells the loader that of its own count."""
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator, skip_first_batches

    accelerator = Accelerator(cpu=True)
    dataset = folder(root, train_transform())
    prepared = accelerator.prepare(make(dataset))
    assert prepared.base_dataloader._place.dealt_out, "all ranks have one seed"
    assert skip_first_batches(prepared, 1).base_dataloader._place.dealt_out
    whole = [samples_of(prepared)]
    batches = iter(prepared)
    whole.append(samples_of(itertools.islice(batches, 2)))
    state = prepared.state_dict()
    whole[1] += samples_of(batches)
    other = accelerator.prepare(make(dataset))
    other.load_state_dict(state)
    assert samples_of(other) == whole[1][8:] and other.report().as_dict()["epoch"] == 1
    other.close()
    prepared.close()


def test_what_a_prepared_loader_is_not_told(root: Path, make: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import offloading, skip_first_batches

    plain = DataLoader(folder(root, eval_transform()), 4)
    with pytest.raises(ConfigError, match=r"must be one that accelerate has prepared, got a DataLoader"):
        offloading(plain)
    prepared = accelerate.Accelerator(cpu=True).prepare(plain)
    with pytest.raises(ConfigError, match="batch_size, shard must be left to accelerate"):
        offloading(prepared, shard=True, batch_size=2)
    with pytest.raises(ConfigError, match="shard must be False where accelerate deals the samples out"):
        skip_first_batches(make(shard=True), 2)


def test_fastais_own_distribution_is_refused(make: Any) -> None:
    """Its `DistributedDL` takes these from a loader, this one first."""
    loader = make()
    assert not hasattr(loader, "bs")
    with pytest.raises(AttributeError, match=r"to_distributed must be given loaders of fastai's class.* shard=True"):
        attrgetter("bs", "drop_last", "dataset")(loader)


def test_a_loader_without_an_agent_is_left_to_accelerate(make: Any) -> None:
    assert make(agent=None)._is_accelerate_prepared is False


def test_the_rest_of_an_epoch_under_accelerate(root: Path, make: Any) -> None:
    """Its `skip_first_batches`, in the epoch in which it is called; batches are prepared once only."""
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dataset = folder(root, eval_transform())
    expected = samples_of(DataLoader(dataset, 4))
    prepared = accelerator.prepare(make(dataset))
    assert accelerator.prepare(prepared) is prepared
    assert samples_of(prepared) == expected
    rest = accelerator.skip_first_batches(prepared, 2)
    assert samples_of(rest) == expected[8:]
    report = rest.report().as_dict()
    assert report["offloading"] and report["epoch"] == 1 and set(report["choices"]) == {"pixels"}
    rest.close()
    prepared.close()
