"""What can be told of a sample's file, and what its ops and encodings take: a sample that has been answered is run
through the whole pipeline once more, encoded in other ways, and measured.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import msgpack
from PIL import Image

from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.encodings.estimate import Features, UsedAt
from sophon_loader.encodings.registry import encodings, fitted, used_at
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.source import StepsOnPicture


class FileFacts(NamedTuple):
    """What sizes and times are estimated from: bytes of a file, px of its picture (0 where its header could not be
    read), and the share of it that is read."""

    nbytes: int
    px: int
    share: float

    def features(self, value_nbytes: float) -> Features:
        """What an encoding's size is estimated from.

        Args:
            value_nbytes: of the value to be encoded, as it is.
        """
        return Features(self.nbytes, value_nbytes, self.px, self.share)


@dataclass(frozen=True)
class KnownPicture:
    """What is known of a sample's file before any op has run.

    Args:
        nbytes: of the file.
        px: of the picture, 0 where its header could not be read.
        begun: its steps, as far as they come without pixels; None for a file that has no program.
        taken_by: encodings that take the whole file.
    """

    nbytes: int
    px: int
    begun: StepsOnPicture | None
    taken_by: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of the picture that is read."""
        return 1.0 if self.begun is None else self.begun.share

    @property
    def can_be_cut(self) -> bool:
        """Whether its bitstream could be cut: a JPEG file of a kind that can be, of which only a part is read."""
        return self.begun is not None and self.begun.source.can_be_cut and self.share < 1

    @property
    def facts(self) -> FileFacts:
        """What its sizes and times are estimated from."""
        return FileFacts(self.nbytes, self.px, self.share)


def looked_at(data: bytes, begun: StepsOnPicture | None) -> KnownPicture:
    """What can be told of a file whose steps are known, if it has any.

    Args:
        data: the file.
        begun: its steps.
    """
    taken_by = tuple(name for name in _of_files() if encodings()[name].accepts(data))
    width, height = begun.source.shape[:2] if begun is not None else _size_of(data)
    return KnownPicture(len(data), width * height, begun, taken_by)


def _size_of(data: bytes) -> tuple[int, int]:
    """Width and height of a picture without a program, px; 0 where Pillow cannot open it: the loader's op says so."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            size: tuple[int, int] = image.size
            return size
    except Exception:
        return 0, 0


@cache
def _of_files() -> tuple[str, ...]:
    """Names of the encodings of a whole file whose size must be found by trying."""
    return tuple(name for name in fitted() if used_at(name) is UsedAt.FILE)


@dataclass(frozen=True)
class SampleTrial:
    """A sample taken through the whole pipeline.

    Example:
        >>> SampleTrial.from_bytes(trial.to_bytes()) == trial
        True

    Args:
        file: what was known of the sample's file.
        op_s: CPU seconds of each op, the whole file being decoded.
        nbytes: of the value behind each op as it is; 0 for one that cannot cross.
        plain: the encoding in which that value crosses as it is; "" for none.
        encoded: by encoding, the value's size as it is, its size encoded, and CPU seconds of encoding.
        lacking: encodings of which too little was known, and of which it was to tell.
    """

    file: FileFacts
    op_s: tuple[float, ...]
    nbytes: tuple[int, ...]
    plain: tuple[str, ...]
    encoded: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """For other workers: what this one has found, they need not."""
        fields = self.file, self.op_s, self.nbytes, self.plain, self.encoded, self.lacking
        packed: bytes = msgpack.packb(fields)
        return packed

    @staticmethod
    def from_bytes(packed: bytes | memoryview) -> SampleTrial:
        """The inverse of `to_bytes`."""
        file, *others = msgpack.unpackb(packed, use_list=False)
        return SampleTrial(FileFacts(*file), *others)


class Stages(NamedTuple):
    """How a trial takes a file through all stages.

    Args:
        run: takes the file, and a function that it calls with (stage, value) at each stage from 1 on.
        resized_at: the stage at which encodings of resized values are used; None for none.
    """

    run: Callable[[bytes, Callable[[int, Any], None]], object]
    resized_at: int | None


def tried(data: bytes, picture: KnownPicture, stages: Stages, names: Collection[str], *, cuts: bool) -> SampleTrial:
    """Run all ops on a sample and encode it, for the measurements alone.

    Args:
        data: the file.
        picture: what has been told of it.
        stages: how to run it.
        names: encodings to try, of those whose size must be found by trying.
        cuts: whether the loader takes a part of a file; then whole ones are encoded only where they cannot be cut.

    Raises:
        Exception: whatever an op raises.
    """
    op_s: list[float] = []
    nbytes: list[int] = []
    plain: list[str] = []
    encoded: dict[str, tuple[int, int, float]] = {}
    last_s = time.thread_time()

    def note(name: str, value: Any, value_nbytes: int, since_s: float) -> None:
        with contextlib.suppress(Exception):  # of an encoding of somebody else's: it is left out, and no other one
            if encodings()[name].accepts(value):
                payload = encodings()[name].encode(value).payload
                encoded[name] = value_nbytes, len(payload), time.thread_time() - since_s

    def after(stage: int, value: Any) -> None:
        nonlocal last_s
        op_s.append(time.thread_time() - last_s)
        known = (name for name in PLAIN if name in encodings())
        name = next((name for name in known if encodings()[name].accepts(value)), "")
        nbytes.append(_nbytes_of(value) if name else 0)
        plain.append(name)
        if stage == stages.resized_at:
            for other in names:
                if used_at(other) is UsedAt.RESIZED:
                    note(other, value, nbytes[-1], time.thread_time())
        last_s = time.thread_time()

    part = picture.begun.part() if cuts and picture.begun is not None and picture.can_be_cut else None
    part_s = time.thread_time() - last_s
    for name in names:
        if used_at(name) is UsedAt.FIRST_REGION and isinstance(part, PartOfFile):
            note(name, part, len(data), time.thread_time() - part_s)
        elif used_at(name) is UsedAt.FILE and not isinstance(part, PartOfFile):  # of a part, there is less to encode
            note(name, data, len(data), time.thread_time())
    last_s = time.thread_time()
    stages.run(data, after)
    return SampleTrial(picture.facts, tuple(op_s), tuple(nbytes), tuple(plain), encoded)


def _nbytes_of(value: Any) -> int:
    """Size of a value as its plain encoding sends it."""
    if isinstance(value, Image.Image):
        return value.width * value.height * len(value.getbands())
    return int(value.nbytes)
