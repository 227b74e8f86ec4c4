"""Milliseconds and bytes per image of the bitstream crop, against decoding and against TurboJPEG's transform.

    python -m bench.jpegcrop --data PATH --json jpegcrop.json

Each image gets one rectangle as RandomResizedCrop draws it (8-100 % of the area, 3/4 to 4/3), from --seed. A
round goes over all images and does, one straight after the other for the same image: the crop, Pillow's decode of the
whole file, Pillow's decode of the cropped file, `fused.decode` of the rectangle and, where PyTurboJPEG is installed,
`tjTransform` to the same MCUs.
One thread, files in memory. A ratio is that of two totals of one round; its spread is over the rounds.

Why the crop is fast: it only finds where each Huffman code ends, several codes per look-up, and stops at the last row
kept. Decoding also dequantises, transforms, up-samples and converts colours, and tjTransform writes every coefficient
again. Where it loses: a rectangle at the bottom of a tall picture costs nearly as much as all of it, and a file it
refuses has cost the time of the attempt.

Bars, on ImageNet files: crop <= 0.32 of the full decode's time, cropped bytes <= 0.48 of the files'.
"""

from __future__ import annotations

import io
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from PIL import Image
from tqdm import tqdm

from bench import arguments, record
from sophon_loader import native
from sophon_loader.native import fused

TIME_BAR, BYTES_BAR = 0.32, 0.48
CROP, FULL, PART, FUSED, TRANSFORM = "crop", "full decode", "decode of cropped", "fused decode", "tjTransform"

Box = tuple[int, int, int, int]
Transform = Callable[[bytes, Box], object]


@dataclass(frozen=True)
class Job:
    """A file, the rectangle to cut out, and the file that the crop made of it."""

    data: bytes
    box: Box
    cropped: native.Cropped


@dataclass(frozen=True)
class Row:
    """One way of getting pixels or files: ms per image, and its time as a share of the full decode's."""

    way: str
    ms_mean: float
    ms_median: float
    ratio: dict[str, float]


def draw_box(rng: random.Random, width: int, height: int) -> Box:
    """A rectangle with the distribution of torchvision's RandomResizedCrop; as a fallback, the whole picture."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    return 0, 0, width, height


def load_jobs(folder: Path, seed: int) -> tuple[list[Job], int]:
    """The files that can be cropped, and the number of those that cannot."""
    rng = random.Random(seed)
    jobs, refused = [], 0
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in {".jpg", ".jpeg"}):
        data = path.read_bytes()
        size = native.image_size(data)
        box = draw_box(rng, *size) if size else (0, 0, 1, 1)
        cropped = native.crop(data, *box)
        if isinstance(cropped, native.Cropped):
            jobs.append(Job(data, box, cropped))
        else:
            refused += 1
    return jobs, refused


def decode(data: bytes) -> Image.Image:
    """Decode a picture as the Decode op does."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def is_same(job: Job) -> bool:
    """Return True if both ways lead to equal pixels."""
    left, top, width, height = job.box
    dx, dy = job.cropped.dx, job.cropped.dy
    want = decode(job.data).crop((left, top, left + width, top + height))
    return want.tobytes() == decode(job.cropped.data).crop((dx, dy, dx + width, dy + height)).tobytes()


def find_transform() -> Transform | None:
    """TurboJPEG's lossless crop, or None where PyTurboJPEG or its library is missing."""
    try:
        from turbojpeg import TurboJPEG

        turbo = TurboJPEG()
    except (ImportError, OSError, RuntimeError):
        return None
    return lambda data, box: turbo.crop(data, *box, copynone=True)


def timed_ms(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - start) * 1e3


def one_round(jobs: list[Job], transform: Transform | None, label: str) -> dict[str, list[float]]:
    """Milliseconds of each image in each way, interleaved."""
    times: dict[str, list[float]] = {way: [] for way in (CROP, FULL, PART, FUSED, TRANSFORM)}
    for job in tqdm(jobs, desc=label, unit="image", file=sys.stderr):
        times[CROP].append(timed_ms(native.crop, job.data, *job.box))
        times[FULL].append(timed_ms(decode, job.data))
        times[PART].append(timed_ms(decode, job.cropped.data))
        left, top, width, height = job.box
        if fused.decodes:
            times[FUSED].append(timed_ms(fused.decode, job.data, (left, top, left + width, top + height)))
        if transform:
            times[TRANSFORM].append(timed_ms(transform, job.data, aligned(job)))
    return {way: values for way, values in times.items() if values}


def aligned(job: Job) -> Box:
    """From the first kept MCU to the end of the rectangle: tjTransform begins nowhere else."""
    left, top, width, height = job.box
    return left - job.cropped.dx, top - job.cropped.dy, width + job.cropped.dx, height + job.cropped.dy


def summarise(rounds: list[dict[str, list[float]]]) -> list[Row]:
    rows = []
    for way in rounds[0]:
        every = [value for times in rounds for value in times[way]]
        ratio = record.spread([sum(times[way]) / sum(times[FULL]) for times in rounds])
        rows.append(Row(way, mean(every), median(every), ratio))
    return rows


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.jpegcrop", __doc__, pictures=True)
    parser.add_argument("--rounds", type=arguments.count(), default=5, help="How often every image is measured.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the rectangles.")
    return parser


def report(rows: list[Row], totals: dict[str, Any]) -> None:
    print(f"{'':<18}{'ms mean':>9}{'ms median':>11}   of the full decode, median (min-max over rounds)")
    for row in rows:
        low, middle, high = (row.ratio[key] for key in ("min", "median", "max"))
        print(f"{row.way:<18}{row.ms_mean:>9.3f}{row.ms_median:>11.3f}   {middle:.3f} ({low:.3f}-{high:.3f})")
    print(
        f"bytes per image: {totals['file_nbytes']:.0f} -> {totals['cropped_nbytes']:.0f} "
        f"({totals['bytes_ratio']:.3f}; median of the images {totals['bytes_ratio_median']:.3f})"
    )
    print(f"{totals['images']} images, {totals['refused']} refused, {totals['unlike']} with a pixel that differs")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results; 1 when a bar is missed or a pixel differs."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    if not native.available:
        remedy = "run `python setup.py build_ext --inplace`"
        bench.refuse("the C extension", "built", native.reason, remedy)
    jobs, refused = load_jobs(options.data, options.seed)
    if not jobs:
        bench.refuse("--data", "a folder with JPEG files that can be cropped", options.data, "give another one")
    transform = find_transform()
    one_round(jobs[:20], transform, "warm-up")
    rounds = [one_round(jobs, transform, f"round {i + 1}/{options.rounds}") for i in range(options.rounds)]
    rows = summarise(rounds)
    before, after = [len(job.data) for job in jobs], [len(job.cropped.data) for job in jobs]
    totals = {
        "images": len(jobs),
        "refused": refused,
        "unlike": sum(not is_same(job) for job in jobs),
        "file_nbytes": mean(before),
        "cropped_nbytes": mean(after),
        "bytes_ratio": sum(after) / sum(before),
        "bytes_ratio_median": median(b / a for a, b in zip(before, after, strict=True)),
        "seed": options.seed,
    }
    report(rows, totals)
    record.write(options.output, [*map(asdict, rows), totals])
    kept = rows[0].ratio["median"] <= TIME_BAR and totals["bytes_ratio"] <= BYTES_BAR and not totals["unlike"]
    print("all bars kept" if kept else f"MISSED a bar (time {TIME_BAR}, bytes {BYTES_BAR}, 0 pixels)")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
