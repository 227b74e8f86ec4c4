"""Make small JPEG files of every shape the standard allows and ordinary encoders never write.

The coefficients are random, not those of a picture: a decoder does not mind, and each block tests more.
"""

from __future__ import annotations

import heapq
import io
import math
import random
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from PIL import Image

from tests.support.drawn import FULL

Sampling = tuple[tuple[int, int], ...]

DENSITIES = (0.0, 0.02, 0.1, 0.5, 1.0)
"""See `Spec.density`."""

LAYOUTS: dict[str, Sampling] = {
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "4:4:1": ((1, 4), (1, 1), (1, 1)),
    "3:1:1": ((3, 1), (1, 1), (1, 1)),
    "4:2:0 chroma unlike": ((2, 2), (1, 2), (2, 1)),
    "4:2:0 of 4": ((4, 1), (2, 1), (2, 1)),
    "luma halved": ((1, 1), (2, 2), (2, 2)),
    "4:4:4 of 2": ((2, 1), (2, 1), (2, 1)),
    "grey": ((1, 1),),
    "grey 2x2": ((2, 2),),
    "grey 4x1": ((4, 1),),
}


@dataclass(frozen=True)
class Spec:
    """What to make.

    Attributes:
        sampling: (horizontal, vertical) factors of each component.
        restart_interval: MCUs; 0 = none.
        optimise: Huffman tables with the symbols in use and no others, else those of T.81 Annex K.
        fill_bytes: FF bytes before each marker.
        density: the share of AC coefficients that are not 0; 1 makes full blocks, without an end-of-block code.
        dc_step: the largest change of a DC value from block to block.
        dc_limit: the largest DC value.
    """

    width: int
    height: int
    sampling: Sampling
    seed: int = 0
    restart_interval: int = 0
    optimise: bool = False
    fill_bytes: int = 0
    density: float = 0.08
    dc_step: int = 60
    dc_limit: int = 140
    sof: int = 0xC0
    ids: tuple[int, ...] = (1, 2, 3)
    adobe_transform: int | None = None
    jfif: bool = True


# (class, table): codes by symbol, as (value, length)
Codes = dict[tuple[int, int], dict[int, tuple[int, int]]]
# (class, table): symbols of each length 1..16
Lengths = dict[tuple[int, int], list[list[int]]]


@dataclass
class Bits:
    """Bits of a scan."""

    value: int = 0
    length: int = 0
    chunks: list[bytes] = field(default_factory=list)

    def put(self, value: int, length: int) -> None:
        self.value = self.value << length | value
        self.length += length

    def stuffed(self) -> bytes:
        pad = -self.length % 8
        value = self.value << pad | ((1 << pad) - 1)
        return value.to_bytes((self.length + pad) // 8, "big").replace(b"\xff", b"\xff\x00")


def make_jpeg(spec: Spec) -> bytes:
    """Encode `spec`; the same spec gives the same bytes."""
    segments = list(_segments(spec))
    lengths = code_lengths(segments) if spec.optimise else _standard_tables()
    codes = {key: codes_of(table) for key, table in lengths.items()}
    fill = b"\xff" * spec.fill_bytes
    scan = b""
    for i, symbols in enumerate(segments):
        bits = Bits()
        for key, symbol, value, size in symbols:
            bits.put(*codes[key][symbol])
            bits.put(value, size)
        scan += bits.stuffed()
        if i + 1 < len(segments):
            scan += fill + bytes([0xFF, 0xD0 + i % 8])
    return b"".join([b"\xff\xd8", *_header(spec, lengths, fill), scan, fill, b"\xff\xd9"])


def with_segment(jpeg: bytes, marker: int, body: bytes) -> bytes:
    """A file with one more segment, in front of all others."""
    return jpeg[:2] + segment(b"", marker, body) + jpeg[2:]


def index_of_pictures(pictures: Sequence[tuple[int, int, int]], order: str = "<") -> bytes:
    """The body of an MPF segment as phones write it (CIPA DC-007, 5.2.3).

    Args:
        pictures: of each, its kind, size and offset in bytes.
        order: of bytes, "<" or ">".
    """
    entries = [(0xB000, 7, 4, struct.unpack(order + "I", b"0100")[0]), (0xB001, 4, 1, len(pictures))]
    entries += [(0xB002, 7, 16 * len(pictures), 50)]
    tiff = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, len(entries))
    tiff += b"".join(struct.pack(order + "HHII", *entry) for entry in entries) + bytes(4)
    return b"MPF\0" + tiff + b"".join(struct.pack(order + "IIIHH", *picture, 0, 0) for picture in pictures)


def segment(fill: bytes, marker: int, body: bytes) -> bytes:
    return fill + bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def _header(spec: Spec, lengths: Lengths, fill: bytes) -> Iterator[bytes]:
    n = len(spec.sampling)
    if spec.jfif:
        yield segment(fill, 0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    if spec.adobe_transform is not None:
        yield segment(fill, 0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([spec.adobe_transform]))
    yield from quantisation(fill, n)
    frame = bytes([8]) + spec.height.to_bytes(2, "big") + spec.width.to_bytes(2, "big") + bytes([n])
    for i, (h, v) in enumerate(spec.sampling):
        frame += bytes([spec.ids[i], h << 4 | v, min(i, 1)])
    yield segment(fill, spec.sof, frame)
    for (cls, number), table_lengths in lengths.items():
        counts = bytes(len(symbols) for symbols in table_lengths)
        body = bytes([cls << 4 | number]) + counts + b"".join(map(bytes, table_lengths))
        yield segment(fill, 0xC4, body)
    if spec.restart_interval:
        yield segment(fill, 0xDD, spec.restart_interval.to_bytes(2, "big"))
    scan = bytes([n]) + b"".join(bytes([spec.ids[i], min(i, 1) * 0x11]) for i in range(n))
    yield segment(fill, 0xDA, scan + b"\0\x3f\0")


def quantisation(fill: bytes, n: int) -> Iterator[bytes]:
    """The tables of a file of `n` components. Their steps have some samples leave 0..255, so that clamping is seen."""
    for table in range(min(n, 2)):
        yield segment(fill, 0xDB, bytes([table, 7 + table, *[3 + i // 8 for i in range(63)]]))


Symbol = tuple[tuple[int, int], int, int, int]  # table, symbol, value bits, how many


def _segments(spec: Spec) -> Iterator[list[Symbol]]:
    """The symbols of the scan, in lists between restarts."""
    rng = random.Random(spec.seed)
    h_max = max(h for h, _ in spec.sampling)
    v_max = max(v for _, v in spec.sampling)
    lone = len(spec.sampling) == 1
    columns = math.ceil(spec.width / (8 * (1 if lone else h_max)))
    rows = math.ceil(spec.height / (8 * (1 if lone else v_max)))
    total = columns * rows
    step = spec.restart_interval or total
    for start in range(0, total, step):
        symbols: list[Symbol] = []
        dc = [0] * len(spec.sampling)
        for _ in range(min(step, total - start)):
            for i, (h, v) in enumerate(spec.sampling):
                for _ in range(1 if lone else h * v):
                    previous = dc[i]
                    change = rng.randint(-spec.dc_step, spec.dc_step)
                    dc[i] = max(-spec.dc_limit, min(spec.dc_limit, previous + change))
                    symbols.append(((0, min(i, 1)), *magnitude(dc[i] - previous)))
                    symbols.extend(_ac_symbols(rng, (1, min(i, 1)), spec.density))
        yield symbols


def drawn_block(rng: random.Random, spec: Spec) -> list[int]:
    """64 coefficients in zigzag order."""
    ac = [_drawn_ac(rng, k) if rng.random() < spec.density else 0 for k in range(1, 64)]
    return [rng.randint(-spec.dc_limit, spec.dc_limit), *ac]


def _drawn_ac(rng: random.Random, k: int) -> int:
    return rng.choice((1, 1, 1, 2, 4, 70 // k + 1)) * rng.choice((-1, 1))


def _ac_symbols(rng: random.Random, table: tuple[int, int], density: float) -> Iterator[Symbol]:
    run = 0
    for k in range(1, 64):
        if rng.random() >= density:
            run += 1
            continue
        for _ in range(run // 16):
            yield table, 0xF0, 0, 0
        size, value, _ = magnitude(_drawn_ac(rng, k))
        yield table, run % 16 << 4 | size, value, size
        run = 0
    if run:
        yield table, 0, 0, 0


def magnitude(value: int) -> tuple[int, int, int]:
    """(category, value bits, how many): T.81 F.1.2.1."""
    size = abs(value).bit_length()
    return size, value if value >= 0 else value + (1 << size) - 1, size


def codes_of(lengths: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    codes, code = {}, 0
    for length, symbols in enumerate(lengths, 1):
        for symbol in symbols:
            codes[symbol] = (code, length)
            code += 1
        code <<= 1
    return codes


@cache
def _standard_tables() -> Lengths:
    """The tables of Annex K, as an encoder writes them that does not optimise."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG")
    data, at, tables = out.getvalue(), 2, {}
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length] if data[at + 1] == 0xC4 else b""
        while body:
            ends = [17]
            for count in body[1:17]:
                ends.append(ends[-1] + count)
            tables[body[0] >> 4, body[0] & 15] = [list(body[a:b]) for a, b in pairwise(ends)]
            body = body[ends[-1] :]
        at += 2 + length
    return tables


def code_lengths(segments: Sequence[Sequence[Symbol]]) -> Lengths:
    counts: dict[tuple[int, int], Counter[int]] = {}
    for symbols in segments:
        for table, symbol, _, _ in symbols:
            counts.setdefault(table, Counter())[symbol] += 1
    return {table: _huffman_lengths(count) for table, count in sorted(counts.items())}


def _huffman_lengths(count: Counter[int]) -> list[list[int]]:
    """Huffman code lengths, none over 16, with one code more that stays unused (T.81 K.2)."""
    weights: dict[int, float] = dict(count)
    while True:
        depth = _depths({**weights, -1: 0.0})
        if max(depth.values()) <= 16:
            break
        weights = {symbol: math.sqrt(weight) for symbol, weight in weights.items()}
    # -1 must be the last code of the longest length: canonical order puts it there
    deepest = max(depth.values())
    depth[-1] = deepest
    table: list[list[int]] = [[] for _ in range(16)]
    for symbol, length in depth.items():
        if symbol >= 0:
            table[length - 1].append(symbol)
    return table


def _depths(weights: dict[int, float]) -> dict[int, int]:
    heap = [(weight, i, [symbol]) for i, (symbol, weight) in enumerate(sorted(weights.items()))]
    heapq.heapify(heap)
    depth = dict.fromkeys(weights, 0)
    while len(heap) > 1:
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in (*a[2], *b[2]):
            depth[symbol] += 1
        heapq.heappush(heap, (a[0] + b[0], a[1], [*a[2], *b[2]]))
    return depth


def drawn_jpegs(
    sizes: Sequence[tuple[int, int]], layout: str, optimise: bool, restart_interval: int
) -> Iterator[tuple[random.Random, int, int, bytes]]:
    """Per size: what more may be drawn from for that file, its width, its height, and the file.

    All sizes in `make long`, else every other one; each layout still meets all of them.
    """
    rng = random.Random(f"{layout} {optimise} {restart_interval}")
    if not FULL:
        sizes = sizes[(optimise + (restart_interval + 1) // 2) % 2 :: 2]
    for width, height in sizes:
        data = make_jpeg(
            Spec(
                width,
                height,
                LAYOUTS[layout],
                seed=rng.randrange(1 << 30),
                restart_interval=restart_interval,
                optimise=optimise,
                fill_bytes=rng.choice((0, 0, 2)),
                density=rng.choice(DENSITIES),
            )
        )
        yield rng, width, height, data
