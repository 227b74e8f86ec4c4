"""The option `tail` against a real agent: the same batches, bit for bit, and fewer bytes from the workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader import OffloadingDataLoader, RemoteImageFolder, native
from sophon_loader.errors import ConfigError
from tests.support.agents import Agent
from tests.support.loaders import as_list, noisy_target, run_epoch, said, samples_of
from tests.support.pictures import eval_transform, folder, train_transform

FILES = 40
LOADER = {"batch_size": 7, "seed": 3, "policy": "no-off", "tail": "cpu"}
EPOCHS = 2


def grey_v2() -> Any:
    """A pipeline of v2's whose samples are tv_tensors.Image of one channel."""
    steps = [v2.RandomResizedCrop(48), v2.Grayscale(), v2.ToImage(), v2.ToDtype(torch.float64, scale=True)]
    return v2.Compose([*steps, v2.Normalize([0.5], [0.25])])


def reference(dataset: Any, epoch: int = 0) -> list[tuple[str, Any]]:
    """An epoch in order, computed per sample, without agent and workers."""
    loader = OffloadingDataLoader(dataset, batch_size=5, policy="no-off", seed=3)
    loader.set_epoch(epoch)
    return run_epoch(loader)


def from_workers(loader: Any) -> torch.Tensor:
    """The first images of an epoch as torch's own machinery hands them over."""
    images: torch.Tensor = next(iter(loader)._batches)[0]
    return images


# --- the same batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["no-off", "all-off", "auto"])
@pytest.mark.parametrize("transform", [train_transform, grey_v2], ids=["v1", "v2 grey"])
def test_the_same_batches(root: Path, make: Any, transform: Callable[[], Any], policy: str, workers: int) -> None:
    dataset = folder(root, transform(), target_transform=noisy_target)
    loader = make(dataset, policy=policy, num_workers=workers)
    for epoch in range(EPOCHS):
        assert samples_of(loader) == reference(dataset, epoch)
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"]) == (FILES, 0)
    assert not any("batch by batch" in note for note in report["notes"])
    assert loader.dataset is dataset and len(dataset.transform.transforms) == 5


def test_with_an_agent_of_its_own(root: Path, make: Any) -> None:
    dataset = folder(root, target_transform=noisy_target)
    loader = make(dataset, agent="local", policy="all-off", num_workers=1)
    assert samples_of(loader) == reference(dataset)
    assert loader.report().as_dict()["fallbacks"] == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [train_transform, eval_transform, grey_v2])
def test_without_an_agent(root: Path, make: Any, transform: Callable[[], Any], workers: int) -> None:
    dataset = folder(root, transform())
    assert samples_of(make(dataset, agent=None, num_workers=workers)) == reference(dataset)


@pytest.mark.parametrize("arguments", [{"pin_memory": True}, {"multiprocessing_context": "spawn"}], ids=str)
def test_other_ways_from_the_workers(root: Path, make: Any, arguments: dict[str, Any]) -> None:
    assert samples_of(make(num_workers=1, **arguments)) == reference(folder(root))


@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_a_remote_folder(root: Path, make: Any, agent: Agent, policy: str) -> None:
    dataset = RemoteImageFolder(agent.address(), train_transform())
    assert samples_of(make(dataset, policy=policy, num_workers=1)) == reference(folder(root))


def test_batches_are_lists_of_plain_tensors_where_they_should_be(root: Path, make: Any) -> None:
    loader = make(folder(root, grey_v2()), tail=torch.device("cpu"))
    for batch in loader:
        images, targets = batch
        assert type(batch) is list and type(images) is type(targets) is torch.Tensor
        assert images.is_contiguous() and images.dtype == torch.float64 and targets.device.type == "cpu"


def test_the_tail_follows_the_device(make: Any) -> None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    images, targets = next(iter(make(tail="device")))
    assert (images.device.type, targets.device.type) == (accelerator.type, "cpu")


@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize("tail", ["cpu", "loader"])
def test_batches_sent_ahead_are_the_same(root: Path, make: Any, tail: str, workers: Any) -> None:
    """Also from a state that is taken while others are on their way, and of a dataset that is not offloaded."""
    dataset = folder(root, train_transform(), target_transform=noisy_target)
    loader = make(dataset, policy="all-off", num_workers=workers, tail=tail, device_prefetch=2)
    whole = reference(dataset)
    batches = iter(loader)
    found = samples_of([next(batches) for _ in range(2)])
    state = loader.state_dict()
    assert found + samples_of(batches) == whole
    other = make(dataset, policy="all-off", num_workers=workers, tail=tail, device_prefetch=1)
    other.load_state_dict(state)
    assert samples_of(other) == whole[len(found) :]


@pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")
def test_other_datasets_are_sent_ahead_too(root: Path, make: Any) -> None:
    dataset = OwnGetItem(str(root), eval_transform())
    assert samples_of(make(dataset, device_prefetch=2, num_workers=1)) == samples_of(make(dataset))


# --- what crosses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_a_quarter_of_the_bytes_comes_from_the_workers(make: Any, workers: int) -> None:
    moved, plain = (from_workers(make(num_workers=workers, tail=tail)) for tail in ("cpu", "loader"))
    assert (moved.dtype, tuple(moved.shape)) == (torch.uint8, (7, 48, 48, 3))
    assert moved.nbytes * 4 == plain.nbytes


def test_an_agent_that_runs_all_ops_sends_bytes(make: Any) -> None:
    sent = {}
    for tail in ("cpu", "loader"):
        loader = make(policy="all-off", tail=tail)
        samples_of(loader)
        report = loader.report().as_dict()
        sent[tail] = report["wire_bytes"]
        assert set(report["cuts"]) == {5 if tail == "cpu" else 6}
        assert set(report["choices"]) == {"array"}
    assert sent["cpu"] < 0.35 * sent["loader"]


def test_files_are_still_cropped_in_the_bitstream(make: Any) -> None:
    """As they are not, where somebody may look at an image's metadata."""
    for tail in ("cpu", "loader"):
        loader = make(tail=tail)
        next(iter(loader))
        assert loader._engine.run.profiler.pipelines.crops_first == native.available


# --- epochs ---------------------------------------------------------------------------------------------------


def test_persistent_workers_and_set_epoch(root: Path, make: Any) -> None:
    loader = make(num_workers=2, persistent_workers=True, policy="all-off")
    assert samples_of(loader) == reference(folder(root))
    loader.set_epoch(5)
    assert samples_of(loader) == reference(folder(root), 5)
    next(iter(loader))  # given up
    loader.set_epoch(1)
    assert samples_of(loader) == reference(folder(root), 1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", ["mean", "step", "appended", "collate_fn"])
def test_a_pipeline_that_changes_between_epochs_is_followed(root: Path, make: Any, change: str, workers: int) -> None:
    dataset = folder(root)
    loader = make(dataset, num_workers=workers, policy="all-off")
    assert samples_of(loader) == reference(dataset)
    steps = dataset.transform.transforms
    if change == "mean":
        steps[-1].mean[0] = 0.125
    elif change == "step":
        steps[-2] = v1.PILToTensor()
        steps[-1] = v1.ConvertImageDtype(torch.float16)
    elif change == "appended":
        steps.append(v1.RandomErasing(1.0))
    else:
        loader.collate_fn = _numbered
    notes = {"appended": "v1.RandomErasing stands in the way", "collate_fn": "torch's default_collate"}
    assert samples_of(loader) == reference(dataset, 1)
    assert any(notes[change] in note for note in loader.report().notes) if change in notes else True


def _numbered(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


def test_two_iterators_at_once(root: Path, make: Any) -> None:
    dataset = folder(root)
    loader = make(dataset, num_workers=1)
    one = iter(loader)
    first = next(one)
    dataset.transform.transforms[-1].mean[0] = 0.25
    other = samples_of(loader)
    assert other == reference(dataset, 1)
    dataset.transform = train_transform()
    assert samples_of([first, *one]) == reference(dataset)


def test_a_profile_is_of_the_pipeline_that_ran(root: Path, make: Any, tmp_path: Path) -> None:
    path = tmp_path / "profile.npz"
    for tail, note in (("cpu", ""), ("cpu", "reusing the profile"), ("loader", "measuring anew")):
        loader = make(policy="auto", profile=path, tail=tail, num_workers=1)
        assert samples_of(loader) == reference(folder(root))
        assert any(note in one for one in loader.report().notes) if note else True
        loader.close()


def test_profiling_before_training(root: Path, make: Any) -> None:
    seen: list[torch.dtype] = []
    loader = make(policy="auto", num_workers=1)
    loader.measure(lambda batch: seen.append(batch[0].dtype))
    assert set(seen) == {torch.float32}
    assert samples_of(loader) == reference(folder(root))


def test_a_failing_tail_is_an_error_of_the_iteration(root: Path, make: Any) -> None:
    dataset = folder(root, v1.Compose([v1.Resize((20, 20)), v1.PILToTensor(), v1.Normalize([0.5], [0.5])]))
    with pytest.raises(TypeError, match="Input tensor should be a float tensor") as caught:
        next(iter(make(dataset)))
    assert "in the op v1.Normalize of the pipeline's tail, on cpu" in said(caught.value)


# --- where it cannot be done ----------------------------------------------------------------------------------


def assert_not_moved(loader: Any, dataset: Any, because: str) -> None:
    assert samples_of(loader) == reference(dataset)
    (note,) = [note for note in loader.report().notes if "no op runs on cpu" in note]
    assert because in note


def test_a_pipeline_that_goes_on(root: Path, make: Any) -> None:
    dataset = folder(root, v1.Compose([v1.Resize((20, 20)), v1.ToTensor(), v1.RandomErasing(1.0)]))
    assert_not_moved(make(dataset, num_workers=1), dataset, "v1.RandomErasing stands in the way")


def test_parts_with_different_tails(root: Path, make: Any) -> None:
    dataset = ConcatDataset([folder(root), folder(root, eval_transform())])
    assert_not_moved(make(dataset), dataset, "end in different ops")


def test_parts_with_one_tail(root: Path, make: Any) -> None:
    dataset = ConcatDataset([folder(root, eval_transform(), target_transform=noisy_target), folder(root, v2_crop())])
    loader = make(dataset, num_workers=2, policy="all-off")
    assert from_workers(loader).dtype == torch.uint8
    loader.set_epoch(0)
    assert samples_of(loader) == reference(dataset)


def v2_crop() -> Any:
    return v2.Compose([v2.RandomCrop(48, pad_if_needed=True), v2.RandomVerticalFlip(), v1.ToTensor()])


def test_a_collate_function_of_one_s_own(root: Path, make: Any) -> None:
    loader = make(collate_fn=as_list)
    assert all(sample[0].dtype == torch.float32 for batch in loader for sample in batch)
    assert any("torch's default_collate" in note for note in loader.report().notes)


def test_without_batches(root: Path, make: Any) -> None:
    loader = make(folder(root, grey_v2()), batch_size=None, num_workers=1)
    assert {type(image) for image, _ in loader} == {tv_tensors.Image}
    assert any("torch's default_collate" in note for note in loader.report().notes)


class OwnGetItem(ImageFolder):
    """Not offloadable."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")
def test_a_dataset_that_cannot_be_offloaded(root: Path, make: Any) -> None:
    dataset = OwnGetItem(str(root), eval_transform())
    loader = make(dataset)
    assert samples_of(loader) == samples_of(DataLoader(dataset, 7))
    runs, no_op, *_ = loader.report().notes
    assert "own code makes the samples" in runs and no_op.startswith("no op runs on cpu")


def test_devices_that_are_not_there(make: Any) -> None:
    with pytest.raises(ConfigError, match="tail must be 'loader', 'device' or a device of this host"):
        make(tail="gpu:0")
