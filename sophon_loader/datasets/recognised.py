"""Datasets known by their class: the attributes that hold files and labels, and the function that opens the files.

Each rule was read off a class's own `__getitem__`; a subclass that adds to it is unknown. A class is named by library
and name, so nothing is imported to look for it. A few samples are compared with the dataset's own before the first
epoch (`run/comparison.py`), since a release may change what a class does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

from torchvision import get_image_backend
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2

from sophon_loader.datasets.protocol import NotOffloadable, OffloadableDataset, Source, Transform
from sophon_loader.datasets.sample_keys import keys_below
from sophon_loader.datasets.targets import targets_of
from sophon_loader.pipeline.presets import steps_of
from sophon_loader.pipeline.replaced import Replaced, replaced_in_dataset, replaced_in_pillow

Transforms = tuple[Transform | None, Transform | None]
OWN = ("__getitem__", "__len__", "__getitems__", "key", "target")
"""Members that a subclass must not override if its base's rule is to hold for it."""


def _root(dataset: Any) -> Any:
    return dataset.root


def _above(dataset: Any) -> str:
    """Return the root of a class whose `root` is a folder inside the folder that the user gave."""
    return os.path.dirname(str(dataset.root))


@dataclass(frozen=True)
class Rule:
    """The attributes of a class from which its samples are made.

    Args:
        reads: names of these attributes.
        parts: dataset -> (paths, labels), in the order of its indices.
        loader: the attribute with the function that opens a file; "" if the class opens it itself, as RGB.
        as_it_is: True if the class, without a loader, opens a picture in the mode of its file.
        joint: True if image and label go through `transforms` together.
        root: dataset -> the folder that holds its files.
        compared: True if a few samples are compared with the dataset's own.
        refuses: dataset -> another reason why it cannot be offloaded; "" if there is none.
    """

    reads: tuple[str, ...]
    parts: Callable[[Any], tuple[Sequence[Any], Any]]
    loader: str = "loader"
    as_it_is: bool = False
    joint: bool = False
    root: Callable[[Any], Any] = _root
    compared: bool = True
    refuses: Callable[[Any], str] = lambda dataset: ""

    def source(self, dataset: Any) -> Source:
        """Take the dataset apart.

        Raises:
            NotOffloadable: the dataset cannot be offloaded; the text says why.
        """
        name = type(dataset).__name__
        try:
            self._check(dataset, name)
            root = os.fspath(self.root(dataset))
            paths, labels = self.parts(dataset)
            keys = keys_below(paths, root)
        except AttributeError as error:
            raise NotOffloadable(f"{name} lacks {error.name}, which all releases known here have") from error
        except ValueError as error:
            raise NotOffloadable(f"{name} has samples outside its root {root}") from error
        return Source(root, keys, targets_of(labels), promised=self.compared)

    def _check(self, dataset: Any, name: str) -> None:
        if why := self.refuses(dataset):
            raise NotOffloadable(f"{name} {why}")
        if self.joint and type(dataset.transforms) not in (type(None), StandardTransform):
            raise NotOffloadable(
                f"{name} has `transforms`, which take image and label together; use transform= and target_transform="
            )
        opens = self._opens(dataset)
        if opens is None and not _begins_with_rgb(dataset.transform):
            raise NotOffloadable(
                f"{name} opens each picture in its file's own mode, not as RGB; begin its transform with "
                "torchvision.transforms.v2.RGB(), or use sophon_loader.FileDataset"
            )
        # The default one opens a file by the other, unless torchvision is set to use accimage.
        if opens is not pil_loader and (opens not in (None, default_loader) or get_image_backend() != "PIL"):
            raise NotOffloadable(
                f"{name} does not use torchvision's default loader with Pillow; leave out its loader=, and move what "
                "else that does into the transform"
            )

    def _opens(self, dataset: Any) -> Any:
        """Return the function that opens its files; None for Pillow without a conversion."""
        usual = None if self.as_it_is else default_loader
        return getattr(dataset, self.loader, usual) if self.loader else usual

    def look(self, dataset: Any) -> list[Any]:
        """Return everything that `source` reads of the dataset, to be compared later."""
        opens = self._opens(dataset)
        mode = [_begins_with_rgb(dataset.transform)] if opens is None else []
        joint = [dataset.transforms] if self.joint else []
        return [self.root(dataset), opens, get_image_backend(), *mode, *joint, *self._read(dataset)]

    def _read(self, dataset: Any) -> list[Any]:
        try:
            return [attrgetter(name)(dataset) for name in self.reads]
        except AttributeError:  # another release; `source` says so
            return []

    def holds(self, dataset: Any) -> tuple[str, ...]:
        """Return the names of the attributes that hold its transforms."""
        if not self.joint:
            return "transform", "target_transform"
        return () if dataset.transforms is None else ("transforms.transform", "transforms.target_transform")

    @property
    def holds_samples(self) -> tuple[str, ...]:
        """Return the attributes that hold or open its files, hold its labels, or transform image and label together."""
        return (*self.reads, *((self.loader,) if self.loader else ()), *(("transforms",) if self.joint else ()))

    def opens_as_rgb(self, dataset: Any) -> bool:
        """Return True if its pictures are RGB, by the function that opens them or by the transform's first step now."""
        return self._opens(dataset) is not None or _begins_with_rgb(dataset.transform)

    def transforms(self, dataset: Any) -> Transforms:
        """Return (transform, target transform), as they are now."""
        if not self.joint:
            return dataset.transform, dataset.target_transform
        both = dataset.transforms
        return (None, None) if both is None else (both.transform, both.target_transform)


class OurRule(Rule):
    """Rule for the datasets of this package, which have a `source` themselves."""

    def source(self, dataset: Any) -> Source:
        """See `Rule`."""
        found: Source = dataset.source
        return found

    def look(self, dataset: Any) -> list[Any]:
        """See `Rule`."""
        return self._read(dataset)


def _begins_with_rgb(transform: Any) -> bool:
    return transform is not None and [type(step) for step in steps_of(transform)[:1]] == [v2.RGB]


def _lists(files: str, labels: str) -> Rule:
    return Rule((files, labels), lambda dataset: (getattr(dataset, files), getattr(dataset, labels)))


def _pairs(samples: str, **more: Any) -> Rule:
    return Rule((samples,), lambda dataset: _unzipped(getattr(dataset, samples)), **more)


def _unzipped(pairs: Any) -> tuple[Sequence[Any], Any]:
    return list(map(itemgetter(0), pairs)), list(map(itemgetter(1), pairs))


# --- classes with more to say -----------------------------------------------------------------------------------


def _columns(names: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
    """Return labels of one kind as they are, of several kinds as tuples."""
    chosen = [columns[name] for name in names]
    return chosen[0] if len(chosen) == 1 else list(zip(*chosen, strict=True))


def _only(allowed: Sequence[str], kinds: Sequence[str]) -> str:
    others = [kind for kind in kinds if kind not in allowed]
    return "" if kinds and not others else f"gives targets other than classes: {list(kinds)}"


_PET_LABELS = {"category": "_labels", "binary-category": "_bin_labels"}


def _pets(dataset: Any) -> tuple[Sequence[Any], Any]:
    columns = {kind: getattr(dataset, name) for kind, name in _PET_LABELS.items()}
    return dataset._images, _columns(dataset._target_types, columns)


def _caltech101(dataset: Any) -> tuple[Sequence[Any], Any]:
    folders = [os.path.join(dataset.root, "101_ObjectCategories", name) for name in dataset.categories]
    paths = [f"{folders[y]}/image_{n:04d}.jpg" for y, n in zip(dataset.y, dataset.index, strict=True)]
    return paths, _columns(dataset.target_type, {"category": dataset.y})


def _caltech256(dataset: Any) -> tuple[Sequence[Any], Any]:
    folders = [os.path.join(dataset.root, "256_ObjectCategories", name) for name in dataset.categories]
    paths = [f"{folders[y]}/{y + 1:03d}_{n:04d}.jpg" for y, n in zip(dataset.y, dataset.index, strict=True)]
    return paths, dataset.y


def _species(dataset: Any) -> tuple[Sequence[Any], Any]:
    categories = [number for number, _ in dataset.index]
    folders = [os.path.join(dataset.root, name) for name in dataset.all_categories]
    columns = {"full": categories}
    for kind in set(dataset.target_type) - {"full"}:
        columns[kind] = [dataset.categories_map[number][kind] for number in categories]
    return [os.path.join(folders[number], name) for number, name in dataset.index], _columns(
        dataset.target_type, columns
    )


def _timm_parts(dataset: Any) -> tuple[Sequence[Any], Any]:
    return _unzipped(dataset.reader.samples)


def _timm_refuses(dataset: Any) -> str:
    if type(dataset.reader).__name__ != "ReaderImageFolder":
        return f"reads with a {type(dataset.reader).__name__}, not from a folder"
    if dataset.load_bytes or dataset.input_img_mode != "RGB":
        return "gives bytes, or pictures of another mode than RGB"
    return "" if getattr(dataset, "additional_features", None) is None else "gives additional features"


_LISTED = ("CLEVRClassification", "DTD", "FGVCAircraft", "Flowers102", "Food101", "SUN397")
_PAIRED = ("Imagenette", "RenderedSST2", "StanfordCars")
_RULES: dict[tuple[str, str], Rule] = {
    ("torchvision", "DatasetFolder"): _pairs("samples", compared=False),
    ("torchvision", "EuroSAT"): _pairs("samples"),
    **{("torchvision", name): _lists("_image_files", "_labels") for name in _LISTED},
    **{("torchvision", name): _pairs("_samples") for name in _PAIRED},
    ("torchvision", "GTSRB"): _pairs("_samples", loader=""),
    ("torchvision", "Places365"): _pairs("imgs", joint=True),
    ("torchvision", "OxfordIIITPet"): Rule(
        ("_images", "_labels", "_bin_labels", "_target_types"),
        _pets,
        loader="",
        joint=True,
        refuses=lambda dataset: _only(list(_PET_LABELS), dataset._target_types),
    ),
    ("torchvision", "Caltech101"): Rule(
        ("categories", "index", "y", "target_type"),
        _caltech101,
        loader="",
        as_it_is=True,
        root=_above,
        refuses=lambda dataset: _only(["category"], dataset.target_type),
    ),
    ("torchvision", "Caltech256"): Rule(
        ("categories", "index", "y"), _caltech256, loader="", as_it_is=True, root=_above
    ),
    ("torchvision", "INaturalist"): Rule(
        ("index", "all_categories", "categories_map", "target_type"), _species, as_it_is=True, root=_above
    ),
    ("timm", "ImageDataset"): Rule(
        ("reader.samples", "load_bytes", "input_img_mode"),
        _timm_parts,
        loader="",
        root=lambda dataset: dataset.reader.root,
        refuses=_timm_refuses,
    ),
    ("sophon_loader", "RemoteImageFolder"): OurRule(("address", "shared_keys", "shared_targets"), _root),
    ("sophon_loader", "RemoteFiles"): OurRule(("address", "shared_keys", "label"), _root),
    ("sophon_loader", "FileDataset"): OurRule(("root", "shared_keys", "label"), _root),
}
"""Library and name of a class -> its rule, which holds for subclasses that change nothing of `OWN`."""


def _known(dataset: Any) -> tuple[type, Rule] | None:
    """Return the nearest base of a dataset's class that has a rule, and the rule."""
    for base in type(dataset).__mro__:
        rule = _RULES.get((base.__module__.partition(".")[0], base.__name__))
        if rule is not None:
            return base, rule
    return None


def own_parts(dataset: Any) -> list[str]:
    """Return the members of `OWN` that a dataset's class overrides."""
    known, cls = _known(dataset), type(dataset)
    if known is None:
        return []
    names = [name for name in OWN if hasattr(known[0], name) or name == "__getitems__"]
    return [name for name in names if getattr(cls, name, None) is not getattr(known[0], name, None)]


def replaced_under(dataset: Any) -> Replaced | None:
    """Return the replaced function that a known dataset calls to make its samples.

    Args:
        dataset: one that holds samples.

    Returns:
        None if nothing was replaced, or the dataset is not known.
    """
    classes = known_classes(dataset)
    if not classes and not isinstance(dataset, OffloadableDataset):
        return None
    return next(filter(None, map(replaced_in_dataset, classes)), None) or replaced_in_pillow()


def known_classes(dataset: Any) -> list[type]:
    """Return the classes with a rule that make a dataset's samples, timm's reader too; [] if it is not known."""
    known = _known(dataset)
    return [] if known is None else [known[0], type(getattr(dataset, "reader", None))]


def rule_of(dataset: Any) -> Rule | None:
    """Return the rule for a dataset; None if its class is not known, or overrides a member of `OWN`."""
    known = _known(dataset)
    return None if known is None or own_parts(dataset) else known[1]
