"""Write the fuzzer's seeds: the smallest files that reach each part of the crop.

    python -m tests.native.fuzz.make_corpus

The same files come out every time; they are part of the repository so that a fuzzer needs no Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.native.make_jpeg import LAYOUTS, Spec, index_of_pictures, make_jpeg, with_segment
from tests.native.make_progressive import make_progressive, scripts

CORPUS = Path(__file__).parent / "corpus"
SMALL = Spec(36, 20, LAYOUTS["4:2:0"])


def seeds() -> Iterator[tuple[str, bytes]]:
    """Names and files."""
    for name, sampling in LAYOUTS.items():
        slug = name.replace(":", "").replace(" ", "-")
        yield slug, make_jpeg(Spec(36, 20, sampling, optimise=True, density=0.05))
    yield "annex-k", make_jpeg(SMALL)
    yield "full-blocks", make_jpeg(Spec(20, 9, LAYOUTS["4:4:4"], density=1.0))
    yield "restart-1", make_jpeg(Spec(36, 20, LAYOUTS["4:2:0"], optimise=True, restart_interval=1))
    yield "restart-3-fill", make_jpeg(Spec(70, 20, LAYOUTS["grey"], optimise=True, restart_interval=3, fill_bytes=2))
    yield "dc-added", make_jpeg(Spec(70, 20, LAYOUTS["4:4:4"], optimise=True, dc_step=2, density=0.02))
    yield (
        "dc-large",
        make_jpeg(Spec(36, 20, LAYOUTS["4:4:4"], optimise=True, dc_step=32000, dc_limit=16383, density=0.02)),
    )
    yield "adobe-rgb", make_jpeg(Spec(20, 9, LAYOUTS["4:4:4"], optimise=True, adobe_transform=0, jfif=False, sof=0xC1))
    plain = make_jpeg(Spec(20, 9, LAYOUTS["grey"], optimise=True, jfif=False))
    yield "metadata", plain[:2] + METADATA + plain[2:]
    lying = make_jpeg(Spec(8, 8, LAYOUTS["grey"]))
    height = lying.index(b"\xff\xc0") + 5
    yield "scan-far-too-short", lying[:height] + (60000).to_bytes(2, "big") + lying[height + 2 :]
    yield "progressive-unlike-its-scan", make_jpeg(Spec(20, 9, LAYOUTS["grey"], optimise=True, sof=0xC2))
    for name, script in scripts(3).items():
        yield f"progressive-{name.replace(' ', '-')}", make_progressive(SMALL, script)
    yield "progressive", make_progressive(Spec(70, 20, LAYOUTS["grey"], restart_interval=3), scripts(1)["apart"])
    grey = make_jpeg(Spec(20, 9, LAYOUTS["grey"], optimise=True))
    yield "several", with_segment(grey, 0xE2, index_of_pictures([(0x030000, 100, 0), (0, 50, 100)])) + grey


METADATA = (
    b"\xff\xe1\0\x2aExif\0\0II*\0\x08\0\0\0\x01\0\x1a\x01\x05\0\x01\0\0\0\x1a\0\0\0\0\0\0\0\x48\0\0\0\x01\0\0\0"
    b"\xff\xed\0\x1cPhotoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\0"
    b"\xff\xe2\0\x10ICC_PROFILE\0\x01\x01"
    b"\xff\xfe\0\x04hi"
)
RECTANGLES = (bytes([90, 90, 120, 120]), bytes([255, 255, 255, 255]), bytes([0, 0, 255, 255]))


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for number, (name, jpeg) in enumerate(seeds()):
        (CORPUS / f"{name}.bin").write_bytes(RECTANGLES[number % len(RECTANGLES)] + jpeg)


if __name__ == "__main__":
    main()
