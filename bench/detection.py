"""Gains of offloading where detectors are trained: sizes and CPU of each sample, in every form that can cross.

`bench.study --workload detection` runs it. A sample's program is what the loader asks an agent for. The agent's part is
measured by what an agent runs; the loader's by opening a picture that lies elsewhere, in one form after the other, and
running the whole transform on it. Each is measured once per sample, as CPU time of one thread, and all forms must give
the same pixels. No wire has a part in this; reading a file costs nothing here.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torchvision.transforms.v2 import functional
from tqdm import tqdm

from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import decode, encode, encodings, used_at
from sophon_loader.kinds.image.execute import begin_program, image_at, part_of_begun
from sophon_loader.kinds.image.header import header_of
from sophon_loader.kinds.image.opened import opened_far
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import BANDS, Shape, output
from sophon_loader.kinds.image.segments import SEGMENTS, steps_until
from sophon_loader.kinds.image.source import StepsOnPicture
from sophon_loader.programs.program import Program

FILES = 120
"""Most files of a folder that are measured, evenly spread; with them a run takes some minutes."""
CHEAPER = 0.1
"""Least share of the loader's CPU time that a form must save to count; single measurements differ by some percent."""
FILE, PART = "file", "part"


# --- the ways in which detectors are trained --------------------------------------------------------------------------


def letterbox(image: Image.Image) -> Image.Image:
    """The picture with its longest side at 640 px, padded to 640 x 640 (YOLO)."""
    return _padded(functional.resize(image, None, max_size=640), 640)


def shortest_side(image: Image.Image) -> Image.Image:
    """The picture with its shortest side at 800 px, or its longest at 1333 px (torchvision's reference)."""
    made: Image.Image = functional.resize(image, [800], max_size=1333)
    return made


def ssd_crop(image: Image.Image) -> Image.Image:
    """A crop of 0.3 to 1 of either side at 300 x 300 px (SSD; its boxes do not matter here)."""
    width, height = (int(side * _uniform(0.3, 1.0)) for side in image.size)
    left, top = _offset(image.width, width), _offset(image.height, height)
    made: Image.Image = functional.resized_crop(image, top, left, height, width, [300, 300])
    return made


def large_scale_jitter(image: Image.Image) -> Image.Image:
    """The picture at 0.1 to 2 times what fits into 1024 x 1024 px, and of that a crop of this size, padded."""
    scale = _uniform(0.1, 2.0) * 1024 / max(image.size)
    width, height = (max(1, int(side * scale)) for side in image.size)
    image = functional.resize(image, [height, width])
    kept_width, kept_height = min(width, 1024), min(height, 1024)
    left, top = _offset(width, kept_width), _offset(height, kept_height)
    image = functional.crop(image, top, left, kept_height, kept_width)  # kept, the larger one would have the file sent
    return _padded(image, 1024)


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _offset(whole: int, kept: int) -> int:
    return int(torch.randint(whole - kept + 1, ()))


def _padded(image: Image.Image, side: int) -> Image.Image:
    made = Image.new(image.mode, (side, side))
    made.paste(image)  # Pillow's `expand` asks for metadata first, so an agent would send the file
    return made


WORKLOADS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "longest side 640, padded": letterbox,
    "shortest side 800, at most 1333": shortest_side,
    "crop of 0.3 to 1, 300 x 300": ssd_crop,
    "scale 0.1 to 2, crop of 1024": large_scale_jitter,
}


# --- one sample -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A form in which a sample can cross.

    Args:
        name: FILE, PART, or `ENCODING at SEGMENT`.
        nbytes: of the payload.
        agent_s: CPU seconds that the agent spends on it.
        loader_s: CPU seconds that the loader spends from the payload to the end of the transform.
        is_end: whether it holds losslessly encoded pixels behind the last step of the program.
    """

    name: str
    nbytes: int
    agent_s: float
    loader_s: float
    is_end: bool = False


@dataclass(frozen=True)
class RawStage:
    """The smallest stage behind the file as uint8, in SOPHON's terms, and CPU seconds of the ops before it."""

    nbytes: int
    agent_s: float


@dataclass(frozen=True)
class Sample:
    """A sample in every form.

    Args:
        forms: the first is the file.
        raw: None where the sample has no program.
    """

    forms: tuple[Form, ...]
    raw: RawStage | None

    @property
    def file(self) -> Form:
        """The file as it is."""
        return self.forms[0]

    @property
    def smallest(self) -> Form:
        """The form of the fewest bytes."""
        return min(self.forms, key=lambda form: form.nbytes)

    @property
    def cheapest(self) -> Form:
        """The form that takes the loader the least CPU time; the file unless it saves more than `CHEAPER`."""
        found = min(self.forms, key=lambda form: form.loader_s)
        return found if self.is_cheaper(found) else self.file

    def is_cheaper(self, form: Form) -> bool:
        """Return True if a form saves the loader more than `CHEAPER` of its CPU time."""
        return form.loader_s < (1 - CHEAPER) * self.file.loader_s


class Delivery:
    """A `Supplier` that has one payload, and keeps the program that it is asked for.

    Args:
        data: the file.
        cut: number of the segment of the payload.
        encoded: the payload.
    """

    def __init__(self, data: bytes, cut: int, encoded: Encoded) -> None:
        self.keeps_info = False
        self.program: Program | None = None
        self._data, self._cut, self._encoded = data, cut, encoded

    def file(self) -> bytes:
        """See `Supplier.file`."""
        return self._data

    def made(self, program: Program, *, pixels: bool) -> tuple[int, Any]:
        """See `Supplier.made`."""
        self.program = program
        return self._cut, decode(self._encoded.encoding, self._encoded.meta, self._encoded.payload)


def measured(data: bytes, transform: Callable[[Image.Image], Image.Image], seed: int) -> Sample | None:
    """Measure a sample in every form.

    Args:
        data: the file.
        transform: from the RGB picture on.
        seed: of the transform's random numbers.

    Returns:
        None for a file that is opened only where it lies.

    Raises:
        RuntimeError: a form gives other pixels than the file.
    """
    delivery = Delivery(data, 0, encode(data, FILE))
    opened = _finished(delivery, data, transform, seed)
    if opened is None:
        return None
    expected, loader_s = opened
    forms = [Form(FILE, len(data), 0.0, loader_s)]
    program = delivery.program
    if program is None:
        return Sample(tuple(forms), None)
    for name, cut, is_end, encoded, agent_s in _encoded(program, data):
        found = _finished(Delivery(data, cut, encoded), data, transform, seed)
        if found is None or found[0] != expected:
            raise RuntimeError(f"every form must give the pixels of the file, {name} gives others")
        forms.append(Form(name, len(encoded.payload), agent_s, found[1], is_end))
    return Sample(tuple(forms), raw_stage(begin_program(program, data)))


def _finished(
    delivery: Delivery, data: bytes, transform: Callable[[Image.Image], Image.Image], seed: int
) -> tuple[bytes, float] | None:
    """(pixels, CPU seconds of the loader) of a sample that arrives in one form."""
    header = header_of(data)
    image = None if header is None else opened_far(header, len(data), delivery, None)
    if image is None:
        return None
    torch.manual_seed(seed)
    began_s = time.thread_time()
    made = transform(image.convert("RGB"))
    _ = made.im  # the look that makes the pixels
    return made.tobytes(), time.thread_time() - began_s


def _encoded(program: Program, data: bytes) -> list[tuple[str, int, bool, Encoded, float]]:
    """(name, number of the segment, whether it is the end, payload, the agent's CPU seconds) of forms but the file."""
    found = []
    began_s = time.thread_time()
    part = part_of_begun(begin_program(program, data))
    if isinstance(part, PartOfFile):
        encoded = encode(part, "roi-jpeg")
        found.append((PART, 0, False, encoded, time.thread_time() - began_s))
    ended = {steps_until(name, program.steps): SEGMENTS.index(name) for name in ("8-bit", "shrunk", "decoded")}
    for steps, cut in ended.items():
        began_s = time.thread_time()
        image = image_at(begin_program(program, data), SEGMENTS[cut])
        made_s = time.thread_time() - began_s
        for name in encodings():
            if not _carries_pixels(name, is_resized=steps > 0) or not encodings()[name].accepts(image):
                continue
            began_s = time.thread_time()
            encoded = encode(image, name)
            encoding_s = time.thread_time() - began_s
            is_end = steps == len(program.steps)
            found.append((f"{name} at {SEGMENTS[cut]}", cut, is_end, encoded, made_s + encoding_s))
    return found


def _carries_pixels(name: str, *, is_resized: bool) -> bool:
    return used_at(name) is UsedAt.ANY_STAGE or (is_resized and used_at(name) is UsedAt.RESIZED)


def raw_stage(begun: StepsOnPicture) -> RawStage:
    """The smallest stage of a program behind its file as uint8; the earliest of equal ones.

    Args:
        begun: the program's steps on its picture.
    """
    shape = begun.source.shape
    sizes = [_raw_nbytes(shape)]
    for step in begun.steps:
        shape = output(step, shape) or shape
        sizes.append(_raw_nbytes(shape))
    smallest = sizes.index(min(sizes))
    began_s = time.thread_time()
    before = begun.steps[:smallest]
    begun.source.held(before).run(before)
    return RawStage(sizes[smallest], time.thread_time() - began_s)


def _raw_nbytes(shape: Shape) -> int:
    return shape.px * BANDS.get(shape.mode, 4)


# --- all of them ------------------------------------------------------------------------------------------------------


def study(files: Sequence[Path]) -> dict[str, Any]:
    """Measure every workload on the files, and return the conclusions by its name.

    Args:
        files: at least one; those that are `chosen` are measured.
    """
    contents = [path.read_bytes() for path in chosen(files)]
    measured(contents[0], letterbox, 0)  # loads what opens, encodes and decodes
    workloads = {}
    for name, transform in WORKLOADS.items():
        found = [
            measured(content, transform, index)
            for index, content in enumerate(tqdm(contents, desc=name, file=sys.stderr))
        ]
        workloads[name] = conclusions([one for one in found if one is not None])
    return {"files": len(contents), "workloads": workloads}


def chosen(files: Sequence[Path]) -> list[Path]:
    """At most `FILES` of the files, evenly spread."""
    number = min(len(files), FILES)
    return [files[position * len(files) // number] for position in range(number)]


def conclusions(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return who gains, in bytes and in CPU: by SOPHON's rule, by the smallest form, and by the loader's cheapest.

    Times are medians of the samples that gain, in ms, apart from `loader_ms`, the file's of all.

    Args:
        samples: at least one.
    """
    file_nbytes = sum(one.file.nbytes for one in samples)
    raw = [(one.file.nbytes, one.raw) for one in samples if one.raw and one.raw.nbytes < one.file.nbytes]
    saved = sum(nbytes - stage.nbytes for nbytes, stage in raw)
    ends = [(one, [form.nbytes for form in one.forms if form.is_end]) for one in samples]
    both = [any(form.nbytes < one.file.nbytes and one.is_cheaper(form) for form in one.forms) for one in samples]
    return {
        "samples": len(samples),
        "file_kb": file_nbytes / len(samples) / 1000,
        "loader_ms": 1000 * median(one.file.loader_s for one in samples),
        "end_to_file": _median([min(sizes) / one.file.nbytes for one, sizes in ends if sizes]),
        "sophon": {
            "share": len(raw) / len(samples),
            "times_fewer_bytes": file_nbytes / (file_nbytes - saved),
            "agent_ms": _median([1000 * stage.agent_s for _, stage in raw]),
            "bytes_per_cpu_s": _median([(nbytes - one.nbytes) / max(one.agent_s, 1e-9) for nbytes, one in raw]),
        },
        "smallest": _of_forms(samples, [one.smallest for one in samples]),
        "cheapest": _of_forms(samples, [one.cheapest for one in samples]),
        "smaller_and_cheaper_share": sum(both) / len(samples),
    }


def _of_forms(samples: Sequence[Sample], forms: Sequence[Form]) -> dict[str, Any]:
    """Return the share of the samples that gain, and medians of what they do, each in the form of its place."""
    gaining = [(one, form) for one, form in zip(samples, forms, strict=True) if form is not one.file]
    return {
        "share": len(gaining) / len(samples),
        "forms": dict(Counter(form.name for _, form in gaining).most_common()),
        "times_fewer_bytes": sum(one.file.nbytes for one in samples) / sum(form.nbytes for form in forms),
        "agent_ms": _median([1000 * form.agent_s for _, form in gaining]),
        "loader_ms_saved": _median([1000 * (one.file.loader_s - form.loader_s) for one, form in gaining]),
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def show(found: dict[str, Any]) -> None:
    """Print who gains in each workload."""
    columns = ("workload", "SOPHON: shrink", "smaller", "times fewer bytes", "cheaper here", "times fewer bytes")
    table = Table(*columns, "smaller and cheaper", title=found["data"])
    for name, one in found["workloads"].items():
        cells = [f"{one['sophon']['share']:.0%}"]
        for rule in ("smallest", "cheapest"):
            cells += [f"{one[rule]['share']:.0%}", f"{one[rule]['times_fewer_bytes']:.2f}"]
        table.add_row(name, *cells, f"{one['smaller_and_cheaper_share']:.0%}")
    Console(width=120).print(table)
