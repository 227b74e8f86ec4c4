"""Functions of torchvision and Pillow that a program has replaced are called, as under torch's DataLoader."""

from __future__ import annotations

import builtins
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.datasets import folder
from torchvision.transforms import functional, v2

from sophon_loader import FileDataset, OffloadingDataLoader
from sophon_loader.errors import ConfigError
from tests.support.agents import agent_for
from tests.support.loaders import QUICK
from tests.support.pictures import make_tree

CHAIN = transforms.Compose([transforms.Resize(30), transforms.CenterCrop(24), transforms.ToTensor()])
V2_CHAIN = v2.Compose([v2.Resize(30), v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


def darker(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a program puts in a function's place: the same, and a darker image."""

    @functools.wraps(function)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return made.point(lambda value: value // 2) if isinstance(made, Image.Image) else made / 2

    return replacement


def labelled(self: Any, index: int) -> Any:
    path, label = self.samples[index]
    return self.transform(self.loader(path)), label + 100


def several(self: Any, indices: list[int]) -> list[Any]:
    return [labelled(self, index) for index in indices]


def opened(path: Any) -> Any:
    with open(path, "rb") as file:
        return ImageOps.invert(Image.open(file).convert("RGB"))


KEPT: dict[str, Callable[..., Any]] = {"open": PIL.Image.open, "builtin": open}
OPENERS: dict[str, tuple[Any, str, Any]] = {
    "torchvision.datasets.folder.pil_loader": (folder, "pil_loader", opened),
    "pil_loader was replaced by tests.e2e.test_replaced.opened": (folder, "pil_loader", functools.partial(opened)),
    "torchvision.datasets.folder.default_loader": (folder, "default_loader", darker(folder.default_loader)),
    "torchvision.datasets.folder.DatasetFolder.__getitem__": (datasets.DatasetFolder, "__getitem__", labelled),
    "torchvision.datasets.folder.DatasetFolder.__getitems__": (datasets.DatasetFolder, "__getitems__", several),
    "torchvision.datasets.folder.DatasetFolder.__len__": (datasets.DatasetFolder, "__len__", lambda self: 3),
    "PIL.Image.Image.convert": (Image.Image, "convert", darker(Image.Image.convert)),
    "PIL.Image.Image.resize": (Image.Image, "resize", darker(Image.Image.resize)),
    "PIL.Image.open": (PIL.Image, "open", lambda *args: ImageOps.invert(KEPT["open"](*args))),
    "builtins.open": (builtins, "open", lambda *args, **kwargs: KEPT["builtin"](*args, **kwargs)),
}
"""By what the note says: what makes the dataset another one than is known."""
OPS: dict[str, tuple[Any, str, Any]] = {
    "Resize.forward": (transforms.Resize, "forward", darker(transforms.Resize.forward)),
    "ToTensor.__call__": (transforms.ToTensor, "__call__", darker(transforms.ToTensor.__call__)),
    "Compose.__call__": (transforms.Compose, "__call__", darker(transforms.Compose.__call__)),
    "CenterCrop.__call__": (transforms.CenterCrop, "__call__", darker(torch.nn.Module.__call__)),
    "functional.resize": (functional, "resize", darker(functional.resize)),
    "_functional_pil.crop": (functional.F_pil, "crop", darker(functional.F_pil.crop)),
    "transforms.transforms.F": (transforms.transforms, "F", type(torch)("mylab")),
}
"""By what the note says: what makes an op another one."""
vars(OPS["transforms.transforms.F"][2]).update(
    {name: value for name, value in vars(functional).items() if not name.startswith("__")}, crop=darker(functional.crop)
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("photos")
    make_tree(root, files=6, classes=2, plain=True)
    with agent_for({"photos": root}) as running:
        yield root, running.address("photos")


def batches(loader: Any) -> list[Any]:
    return [(images, labels.tolist()) for images, labels in loader]


def assert_equal(loader: Any, dataset: Any) -> None:
    ours, theirs = batches(loader), batches(DataLoader(dataset, 4))
    assert len(ours) == len(theirs)
    for (images, labels), (others, other_labels) in zip(ours, theirs, strict=True):
        assert labels == other_labels and torch.equal(images, others)


def loaders(dataset: Any, address: str) -> Iterator[Any]:
    for workers in (0, 2):
        yield OffloadingDataLoader(dataset, 4, num_workers=workers)
        yield OffloadingDataLoader(dataset, 4, num_workers=workers, agent=address, policy="all-off", options=QUICK)


def assert_all_equal(dataset: Any, address: str, named: str) -> None:
    for loader in loaders(dataset, address):
        assert_equal(loader, dataset)
        notes = loader.report().notes
        loader.close()
        assert any(named in note for note in notes), notes


@pytest.mark.parametrize("named", OPENERS)
def test_a_replaced_opener_is_called(agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setattr(*OPENERS[named], raising=False)
    assert_all_equal(datasets.ImageFolder(agent[0], CHAIN), agent[1], named)


@pytest.mark.parametrize("named", OPS)
def test_a_replaced_op_is_called(agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setattr(*OPS[named])
    assert_all_equal(datasets.ImageFolder(agent[0], CHAIN), agent[1], named)


@pytest.mark.parametrize(
    ("place", "name"),
    [(v2.Resize, "transform"), (v2.Transform, "forward"), (functional.F_pil, "resize")],
)
def test_a_replaced_function_under_v2_is_called(
    agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    monkeypatch.setattr(place, name, darker(getattr(place, name)))
    assert_all_equal(datasets.ImageFolder(agent[0], V2_CHAIN), agent[1], f"{name} was replaced by")


def test_a_list_of_files_is_read_by_a_replaced_pillow(agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "convert", darker(Image.Image.convert))
    dataset = FileDataset(agent[0], ["class_0/000.jpg", "class_1/001.jpg"], [0, 1], CHAIN)
    assert_all_equal(dataset, agent[1], "PIL.Image.Image.convert was replaced by tests.e2e.test_replaced.darker")


def test_the_parameters_of_a_random_crop_are_drawn_by_what_stands_there(
    agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms.RandomResizedCrop, "get_params", staticmethod(lambda *args: (3, 5, 20, 20)))
    chain = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
    assert_all_equal(datasets.ImageFolder(agent[0], chain), agent[1], "RandomResizedCrop.get_params")


@pytest.mark.parametrize(("what", "named"), [(OPENERS, "torchvision.datasets.folder.pil_loader"),
                                             (OPS, "Resize.forward")])  # fmt: skip
def test_a_function_may_be_replaced_at_any_time_between_epochs(
    agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, what: Any, named: str
) -> None:
    dataset = datasets.ImageFolder(agent[0], CHAIN)
    for loader in loaders(dataset, agent[1]):
        assert_equal(loader, dataset)  # as it is shipped
        with monkeypatch.context() as patch:
            patch.setattr(*what[named])
            assert_equal(loader, dataset)
        assert_equal(loader, dataset)
        loader.close()


def test_what_is_shipped_is_offloaded(agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where functions are replaced that no sample is made by, and plugins of Pillow are added."""
    for place, name in ((Image.Image, "save"), (folder, "find_classes"), (Image, "_decompression_bomb_check")):
        monkeypatch.setattr(place, name, lambda *args: None)
    monkeypatch.setattr(Image.Image, "thumb", lambda self: self, raising=False)
    monkeypatch.setattr(transforms.RandomErasing, "forward", lambda self, image: image)
    monkeypatch.setitem(Image.OPEN, "MYLAB", (opened, None))
    root, address = agent
    for chain in (CHAIN, V2_CHAIN):
        dataset = FileDataset(root, ["class_0/000.jpg", "class_1/001.jpg"], [0, 1], chain)
        loader = OffloadingDataLoader(dataset, 4, agent=address, policy="all-off", options=QUICK)
        assert_equal(loader, dataset)
        assert loader.report().offloading and not loader.report().notes
        loader.close()


def _replace_in_worker(worker: int) -> None:
    folder.pil_loader = opened


def _replace_op_in_worker(worker: int) -> None:
    transforms.Resize.forward = darker(transforms.Resize.forward)


@pytest.mark.parametrize(("init", "name"), [(_replace_in_worker, "folder.pil_loader"),
                                            (_replace_op_in_worker, "Resize.forward")])  # fmt: skip
def test_a_worker_must_not_replace_what_the_main_process_has_not(agent: tuple[Path, str], init: Any, name: str) -> None:
    dataset = datasets.ImageFolder(agent[0], CHAIN)
    loader = OffloadingDataLoader(dataset, 4, num_workers=1, worker_init_fn=init)
    with pytest.raises(ConfigError, match=rf"got a worker in which torchvision.*{name} was replaced by .*; replace it"):
        next(iter(loader))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    "named", ["ImageDataset.__getitem__", "ReaderImageFolder.__getitem__", "ResizeKeepRatio.__call__"]
)
def test_what_stands_in_timm_is_called(agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    data = pytest.importorskip("timm.data")
    reader = pytest.importorskip("timm.data.readers.reader_image_folder").ReaderImageFolder
    resize = data.transforms.ResizeKeepRatio
    dataset = data.ImageDataset(str(agent[0]), transform=transforms.Compose([resize(40), CHAIN]))

    def turned(self: Any, index: int) -> Any:
        return theirs(self, len(self) - 1 - index)

    cls = {one.__name__: one for one in (data.ImageDataset, reader, resize)}[named.partition(".")[0]]
    theirs = getattr(cls, named.partition(".")[2])
    if cls is reader:  # which has no length of its own
        monkeypatch.setattr(cls, "__getitem__", lambda self, index: theirs(self, len(self.samples) - 1 - index))
    else:
        monkeypatch.setattr(*((cls, "__call__", darker(theirs)) if cls is resize else (cls, "__getitem__", turned)))
    assert_all_equal(dataset, agent[1], f"{named} was replaced by tests.e2e.test_replaced.")


SPAWNED = """
import sys
from torchvision import datasets, transforms
from torchvision.datasets import folder
from sophon_loader import OffloadingDataLoader

WHERE = sys.argv[2]
if __name__ == WHERE or WHERE == "both":
    folder.pil_loader = lambda path: transforms.functional.invert(KEPT(path))
if __name__ == "__main__":
    data = datasets.ImageFolder(sys.argv[1], transforms.Compose([transforms.CenterCrop(9), transforms.ToTensor()]))
    loader = OffloadingDataLoader(data, 4, num_workers=1, multiprocessing_context="spawn")
    print(next(iter(loader))[1].tolist())
"""


@pytest.mark.parametrize("where", ["__mp_main__", "both"])
def test_a_spawned_worker_has_what_its_module_replaces(agent: tuple[Path, str], tmp_path: Path, where: str) -> None:
    """Where that is done in workers alone, the loader refuses; where the program does it, all processes have it."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNED.replace("WHERE = ", "KEPT = folder.pil_loader\nWHERE = "))
    command = [sys.executable, str(script), str(agent[0]), where]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if where == "both":
        assert ran.stdout == "[0, 0, 0, 1]\n", ran.stderr
    else:
        assert ran.returncode and "got a worker in which torchvision.datasets.folder.pil_loader was" in ran.stderr


def test_who_gave_an_agent_is_warned(agent: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "pil_loader", opened)
    loader = OffloadingDataLoader(datasets.ImageFolder(agent[0], CHAIN), agent=agent[1])
    list(loader)
    assert "pil_loader was replaced by tests.e2e.test_replaced.opened in" in str(loader.report().notes)
    loader.close()
