"""Checks that samples of a dataset are the same if its pictures are deferred: a few, in copies of this process.

Each copy begins in this process's state, and is thrown away with all that the user's code has done in it. So a counter
or a generator of the dataset's own moves once in either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, _utils

from sophon_loader.errors import must_leave
from sophon_loader.order.order import Order
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import GeneratorStates, seed_generators
from sophon_loader.recording.opener import Opener, can_defer
from sophon_loader.recording.picture_counts import PILLOW, PictureCounts
from sophon_loader.run.trial_process import NotTried, tried_apart

SAMPLES = 3
"""Number of samples that are compared: the first ones of the sampler."""
WAIT_S = 20.0
"""Seconds after which a copy is ended, and the dataset runs as in torch."""
SLOW_S = 0.5
"""Seconds after which a sample without a picture ends the trial: such samples are of something else."""
NO_PICTURES = "its first samples open no picture by PIL.Image.open that could be deferred"
BOUND_BEFORE = (
    "its first samples open pictures by a name that was bound before, as by `from PIL.Image import open`; call "
    "PIL.Image.open inside the sample"
)
MOST_FILES, _PATH_NBYTES = 12, 200
"""Number of files by which an agent is looked for, and size of a path; all must fit the answer of a copy."""
_SEED = 20241127
_DEEPEST = 8
_MOST_KINDS = 4


class RecordingTrial(NamedTuple):
    """What the first samples of a dataset have shown.

    Args:
        why_not: reason why no picture is deferred, in words that end a sentence; "" if pictures may be. `NO_PICTURES`
            depends on the dataset alone, and neither on this host nor on time, as the other reasons may.
        files: absolute paths of some files that they have opened as pictures.
    """

    why_not: str
    files: tuple[str, ...] = ()


def tried_to_record(loader: DataLoader[Any], order: Order) -> RecordingTrial:
    """Return what the first samples of a dataset show.

    Args:
        loader: the user's.
        order: of its samplers.
    """
    files: list[str] = []
    return RecordingTrial(_why_not_recorded(loader, order, files), tuple(files))


def _why_not_recorded(loader: DataLoader[Any], order: Order, files: list[str]) -> str:
    try:
        if not can_defer():
            opened = _tried(loader, order, defer=False)["opened"]
            return "our C is not used in this process" if opened else NO_PICTURES
        recorded = _tried(loader, order, defer=True)  # first: what opens no picture is seen at one sample
        files += recorded["files"]
        if not recorded["deferred"]:
            return _why_none(recorded["left"], opened=recorded["opened"])
        plain = _tried(loader, order, defer=False)
        if recorded["values"] == plain["values"]:
            return ""
        if _tried(loader, order, defer=False)["values"] == plain["values"]:
            return "its first samples are other ones where pictures are deferred"
        # They are never the same twice, by a clock or a generator of their own: then kinds and shapes must be.
        return "" if recorded["kinds"] == plain["kinds"] else "its samples are never the same twice"
    except NotTried as why:
        return f"its first samples could not be compared, because {why}"


def _why_none(left: Sequence[str], *, opened: int) -> str:
    """Return the reason why no picture was deferred.

    Args:
        left: kinds of the files that were opened by `PIL.Image.open` and left to Pillow.
        opened: number of files that Pillow has opened in all.
    """
    if left:
        return f"Pillow opens all that its first samples open ({', '.join(kind or 'unknown files' for kind in left)})"
    return BOUND_BEFORE if opened else NO_PICTURES


def _tried(loader: DataLoader[Any], order: Order, *, defer: bool) -> dict[str, Any]:
    found = tried_apart(lambda: json.dumps(_looked_at(loader, order, defer=defer)), WAIT_S)
    result: dict[str, Any] = json.loads(found or "{}")
    return result


def _looked_at(loader: DataLoader[Any], order: Order, *, defer: bool) -> dict[str, Any]:
    """Make some samples within a copy of the process, and return facts about them.

    They are the samples' digests, the number of deferred pictures, the kinds left to Pillow, and, if no picture is
    deferred, the number that Pillow has opened.
    """
    dataset = loader.dataset
    _be_a_worker(loader)
    seed_generators(GENERATORS, _SEED)
    makes: list[Callable[[], Any]]
    indices = _first_indices(order)
    if getattr(dataset, "__getitems__", None):
        makes = [lambda: dataset.__getitems__(indices)]  # type: ignore[attr-defined]
    else:
        makes = [lambda index=index: dataset[index] for index in indices]  # type: ignore[misc]
    values, kinds, deferred = hashlib.sha256(), hashlib.sha256(), 0
    counts, opened, files = PictureCounts(workers=1), [0], _Files()
    _count_opened(opened)
    begun_s = time.monotonic()
    for make in makes:
        if defer and not deferred and time.monotonic() - begun_s > SLOW_S:
            break
        outcome, pictures = _outcome(make, Opener(counts.of(0), files) if defer else None)
        deferred += pictures
        for part in _parts(outcome, 0):
            kinds.update(part[0].encode())
            values.update(part[0].encode())
            values.update(part[1])
    left = sorted(one[1] for one in counts.found() if one[0] == PILLOW)[:_MOST_KINDS]
    digests = {"values": values.hexdigest(), "kinds": kinds.hexdigest()}
    return {**digests, "deferred": deferred, "left": left, "opened": opened[0], "files": files.found}


class _Files:
    """Notes the names of files that are opened as pictures, as `Elsewhere` that has none of them."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def header_of(self, path: str) -> None:
        whole = os.path.abspath(path)
        if len(self.found) < MOST_FILES and len(os.fsencode(whole)) <= _PATH_NBYTES and whole.isprintable():
            self.found.append(whole)

    def opened_here(self, nbytes: int) -> None:
        pass


def _count_opened(opened: list[int]) -> None:
    """Count files that Pillow opens from now on, by any name of its function."""
    begin = ImageFile.ImageFile.__init__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        opened[0] += 1
        begin(self, *args, **kwargs)

    ImageFile.ImageFile.__init__ = counting  # type: ignore[method-assign]  # of this copy of the process alone


def _be_a_worker(loader: DataLoader[Any]) -> None:
    """Act as the first worker, after the user's `worker_init_fn`, if the loader has workers."""
    if loader.num_workers == 0:
        return
    _utils.worker._worker_info = _utils.worker.WorkerInfo(
        id=0, num_workers=loader.num_workers, seed=_SEED, dataset=loader.dataset
    )
    if loader.worker_init_fn is not None:
        loader.worker_init_fn(0)


def _first_indices(order: Order) -> list[Any]:
    entries = iter(order.whole)
    if order.batch_sampler is None:
        return list(islice(entries, SAMPLES))
    found: list[Any] = []
    for batch in entries:
        found += batch
        if len(found) >= SAMPLES:
            break
    return found[:SAMPLES]


def _outcome(make: Callable[[], Any], opener: Opener | None) -> tuple[Any, int]:
    """Return a sample, or the error that it ends with; and the number of pictures that were deferred."""
    if opener is None:
        return _value_or_error(make), 0
    before = GeneratorStates(GENERATORS)
    with opener.opening() as pictures:
        found = _value_or_error(make)
    if pictures.failed:  # it would be made again, which moves what is on `self` twice
        before.put_back()
        found = _value_or_error(make)
    return found, pictures.deferred


def _value_or_error(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        if must_leave(error):
            raise
        return error


def _parts(value: Any, depth: int) -> Iterator[tuple[str, bytes]]:
    """Yield the parts of a value: kind and shape, and bytes."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Image.Image):
        yield f"picture {value.mode} {value.size}", value.tobytes()
    elif isinstance(value, torch.Tensor):
        plain = value.detach().cpu().as_subclass(torch.Tensor).contiguous()
        yield f"{kind} {value.dtype} {tuple(value.shape)} {value.stride()}", _bytes_of(plain)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{kind} {value.dtype} {value.shape}", np.ascontiguousarray(value).tobytes()
    elif isinstance(value, BaseException):
        yield f"{kind}", str(value).encode(errors="replace")
    elif isinstance(value, (str, bytes, int, float, complex, bool, type(None), np.generic)):
        yield kind, repr(value).encode(errors="replace")
    elif depth >= _DEEPEST:
        yield kind, b""
    elif isinstance(value, Mapping):
        yield f"{kind} {list(map(str, value))}", b""
        for one in value.values():
            yield from _parts(one, depth + 1)
    elif isinstance(value, (list, tuple, np.ndarray)):
        yield f"{kind} {len(value)}", b""
        for one in value:
            yield from _parts(one, depth + 1)
    else:
        yield kind, b""
        inner = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)} if _is_data(value) else {}
        for one in {**inner, **getattr(value, "__dict__", {})}.values():
            yield from _parts(one, depth + 1)


def _is_data(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
