"""Kinds of datasets that gain nothing, with remedies; the first warning names them, so that no user edits for nothing.

A kind is read off the class: its name in torchvision, and the libraries that its `__getitem__` names. Nothing of the
dataset runs, and the kind decides only the words.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset, TensorDataset

_FILES = "write single pictures to files to gain, for sophon_loader.FileDataset"
_KINDS = {
    "stream": ("its samples are a stream", "give it a length and a __getitem__ over files to gain"),
    "video": ("its samples are video", "nothing can be done in this release"),
    "audio": ("its samples are audio", "nothing can be done in this release"),
    "volume": ("its samples are volumes", "nothing can be done in this release"),
    "memory": ("its samples are in memory", _FILES),
    "records": ("its samples lie in the records of a file", _FILES),
    "opener": (
        "its pictures are not opened by Pillow",
        "open them as PIL.Image.open(path).convert('RGB') to gain, if other pixels do no harm",
    ),
}
"""Kind -> (reason why it gains nothing, remedy)."""
_LIBRARIES = {
    "video": ("av", "decord", "torchcodec"),
    "audio": ("torchaudio", "soundfile", "librosa"),
    "volume": ("nibabel", "pydicom", "SimpleITK"),
    "records": ("h5py", "lmdb", "pyarrow", "zarr"),
    "opener": ("cv2", "imageio", "skimage", "tifffile", "rasterio"),
}
"""Kind -> libraries whose use in a `__getitem__` shows the kind."""
_CLASSES = {
    "video": ("HMDB51", "Kinetics", "MovingMNIST", "UCF101"),
    "memory": (
        *("CIFAR10", "CIFAR100", "EMNIST", "FER2013", "FakeData", "FashionMNIST", "KMNIST", "MNIST", "PhotoTour"),
        *("QMNIST", "SEMEION", "STL10", "SVHN", "USPS"),
    ),
    "records": ("LSUN", "LSUNClass", "PCAM"),
}
"""Kind -> torchvision's classes of that kind."""


def why_no_gain(dataset: Any) -> str:
    """Return the reason why a dataset's kind gains nothing, and the remedy; "" if its class shows no such kind.

    Example:
        >>> why_no_gain(CIFAR10("data"))
        "its samples are in memory, so nothing is gained by an agent; write single pictures to files to gain, ..."
    """
    kind = _kind(dataset)
    if not kind:
        return ""
    why, remedy = _KINDS[kind]
    return f"{why}, so nothing is gained by an agent; {remedy}"


def _kind(dataset: Any) -> str:
    if isinstance(dataset, IterableDataset):
        return "stream"
    if isinstance(dataset, TensorDataset):
        return "memory"
    for base in type(dataset).__mro__:
        if base.__module__.partition(".")[0] == "torchvision":
            for kind, names in _CLASSES.items():
                if base.__name__ in names:
                    return kind
    used = _libraries(getattr(type(dataset), "__getitem__", None))
    for kind, libraries in _LIBRARIES.items():
        if used.intersection(libraries):
            return kind
    return ""


def _libraries(method: Callable[..., Any] | None) -> set[str]:
    """Return the top-level names of the modules that a method uses, as globals or imported in it."""
    code, named = getattr(method, "__code__", None), getattr(method, "__globals__", {})
    if code is None:
        return set()
    values = [(name, named.get(name)) for name in code.co_names]
    modules = [name if value is None else _module_of(value) for name, value in values]
    return {module.partition(".")[0] for module in modules}


def _module_of(value: Any) -> str:
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    return name if isinstance(name, str) else ""
