"""Make small progressive JPEG files: any layout, and the scans in any order that the standard allows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.native.make_jpeg import Bits, Spec, code_lengths, codes_of, drawn_block, magnitude, quantisation, segment

Scan = tuple[tuple[int, ...], int, int, int, int]
"""Components, first and last zigzag index, and the bit before and of this scan: as a scan header has them."""
Symbol = tuple[tuple[int, int] | None, int, int, int]
"""Table, or None for bits alone; symbol; the bits behind its code, and how many."""


def scripts(n: int) -> dict[str, list[Scan]]:
    """Scans by name, for files of `n` components."""
    every = tuple(range(n))
    return {
        "bands": [(every, 0, 0, 0, 0), *(((i,), 1, 63, 0, 0) for i in every)],
        "as libjpeg": [
            (every, 0, 0, 0, 1),
            ((0,), 1, 5, 0, 2),
            *(((i,), 1, 63, 0, 1) for i in every[:0:-1]),
            ((0,), 6, 63, 0, 2),
            ((0,), 1, 63, 2, 1),
            (every, 0, 0, 1, 0),
            *(((i,), 1, 63, 1, 0) for i in every[::-1]),
        ],
        "apart": [
            *(((i,), 0, 0, 0, 2) for i in every),
            *(((i,), 1, 9, 0, 3) for i in every),
            *(((i,), 10, 63, 0, 1) for i in every),
            *(((i,), 0, 0, 2, 1) for i in every),
            (every, 0, 0, 1, 0),
            *(((i,), 10, 63, 1, 0) for i in every),
            *(((i,), 1, 9, high, high - 1) for high in (3, 2, 1) for i in every),
        ],
    }


def make_progressive(spec: Spec, script: Sequence[Scan]) -> bytes:
    """Encode `spec` by the scans of `script`, each with tables of its own; the same arguments give the same bytes."""
    rng = random.Random(spec.seed)
    planes = [_Plane.drawn(rng, spec, i) for i in range(len(spec.sampling))]
    fill = b"\xff" * spec.fill_bytes
    out = [b"\xff\xd8"]
    if spec.jfif:
        out.append(segment(fill, 0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"))
    out += quantisation(fill, len(planes))
    frame = bytes([8]) + spec.height.to_bytes(2, "big") + spec.width.to_bytes(2, "big") + bytes([len(planes)])
    for i, (h, v) in enumerate(spec.sampling):
        frame += bytes([spec.ids[i], h << 4 | v, min(i, 1)])
    out.append(segment(fill, 0xC2, frame))
    if spec.restart_interval:
        out.append(segment(fill, 0xDD, spec.restart_interval.to_bytes(2, "big")))
    for scan in script:
        out += _written(spec, scan, [*_segments(spec, planes, scan)], fill)
    return b"".join([*out, fill, b"\xff\xd9"])


@dataclass
class _Plane:
    """The coefficients of one component, [rows, columns, 64] in zigzag order; also of blocks that pad the last MCUs."""

    blocks: list[list[list[int]]]
    h: int
    v: int
    width: int
    height: int

    @classmethod
    def drawn(cls, rng: random.Random, spec: Spec, number: int) -> _Plane:
        lone = len(spec.sampling) == 1
        h, v = (1, 1) if lone else spec.sampling[number]
        h_max, v_max = (1, 1) if lone else (max(one) for one in zip(*spec.sampling, strict=True))
        columns = math.ceil(spec.width / (8 * h_max)) * h
        rows = math.ceil(spec.height / (8 * v_max)) * v
        blocks = [[drawn_block(rng, spec) for _ in range(columns)] for _ in range(rows)]
        return cls(
            blocks,
            h,
            v,
            math.ceil(math.ceil(spec.width * h / h_max) / 8),
            math.ceil(math.ceil(spec.height * v / v_max) / 8),
        )


def _written(spec: Spec, scan: Scan, segments: list[list[Symbol]], fill: bytes) -> Iterator[bytes]:
    components, first, last, high, low = scan
    coded = [[(table, symbol, value, size) for table, symbol, value, size in one if table] for one in segments]
    lengths = code_lengths(coded)
    for (cls, number), table in lengths.items():
        yield segment(fill, 0xC4, bytes([cls << 4 | number, *map(len, table)]) + b"".join(map(bytes, table)))
    codes = {key: codes_of(table) for key, table in lengths.items()}
    named = b"".join(bytes([spec.ids[i], min(i, 1) * 0x11]) for i in components)
    yield segment(fill, 0xDA, bytes([len(components)]) + named + bytes([first, last, high << 4 | low]))
    for number, symbols in enumerate(segments):
        bits = Bits()
        for key, symbol, value, size in symbols:
            if key is not None:
                bits.put(*codes[key][symbol])
            bits.put(value, size)
        if number:
            yield fill + bytes([0xFF, 0xD0 + (number - 1) % 8])
        yield bits.stuffed()


def _segments(spec: Spec, planes: Sequence[_Plane], scan: Scan) -> Iterator[list[Symbol]]:
    """The symbols of a scan, in lists between restarts."""
    units = [*_units(planes, scan[0])]
    step = spec.restart_interval or len(units)
    for start in range(0, len(units), step):
        run = units[start : start + step]
        yield [*(_dc(run, scan) if scan[1] == 0 else _Ac(scan).symbols([block for unit in run for _, block in unit]))]


def _units(planes: Sequence[_Plane], components: Sequence[int]) -> Iterator[list[tuple[int, list[int]]]]:
    """MCUs: of each block its component and its coefficients."""
    if len(components) == 1:
        plane = planes[components[0]]
        for row in plane.blocks[: plane.height]:
            yield from ([(components[0], block)] for block in row[: plane.width])
        return
    one = planes[components[0]]
    for down in range(len(one.blocks) // one.v):
        for across in range(len(one.blocks[0]) // one.h):
            yield [
                (i, planes[i].blocks[down * planes[i].v + y][across * planes[i].h + x])
                for i in components
                for y in range(planes[i].v)
                for x in range(planes[i].h)
            ]


def _dc(units: Sequence[Sequence[tuple[int, list[int]]]], scan: Scan) -> Iterator[Symbol]:
    *_, high, low = scan
    before = [0, 0, 0]
    for number, block in (one for unit in units for one in unit):
        value = block[0] >> low
        if high:
            yield None, 0, value & 1, 1
        else:
            size, bits, _ = magnitude(value - before[number])
            yield (0, min(number, 1)), size, bits, size
            before[number] = value


@dataclass
class _Ac:
    """The AC symbols of one scan: T.81, G.1.2.2 and G.1.2.3."""

    scan: Scan
    ended: int = 0
    """Blocks at the end of which nothing was written yet."""
    behind: list[Symbol] = field(default_factory=list)
    """The bits that follow the end of those."""

    def symbols(self, blocks: Sequence[Sequence[int]]) -> Iterator[Symbol]:
        for block in blocks:
            yield from self._block(block)
        yield from self._end()

    @property
    def _table(self) -> tuple[int, int]:
        return 1, min(self.scan[0][0], 1)

    def _end(self) -> Iterator[Symbol]:
        if self.ended:
            size = self.ended.bit_length() - 1
            yield self._table, size << 4, self.ended - (1 << size), size
            yield from self.behind
            self.ended, self.behind = 0, []

    def _block(self, block: Sequence[int]) -> Iterator[Symbol]:
        _, first, last, high, low = self.scan
        seen = {k: abs(block[k]) >> low for k in range(first, last + 1)}
        newest = max((k for k, value in seen.items() if value and (value == 1 or not high)), default=-1)
        zeros, corrections = 0, list[Symbol]()
        for k, value in seen.items():
            if value == 0:
                zeros += 1
                continue
            while zeros > 15 and k <= newest:
                yield from self._end()
                yield self._table, 0xF0, 0, 0
                yield from corrections
                zeros, corrections = zeros - 16, []
            if high and value > 1:
                corrections.append((None, 0, value & 1, 1))
                continue
            size, bits, _ = magnitude(value if block[k] > 0 else -value)
            yield from self._end()
            yield self._table, zeros << 4 | size, bits, size
            yield from corrections
            zeros, corrections = 0, []
        if zeros or corrections:
            self.ended += 1
            self.behind += corrections
            if self.ended == 0x7FFF:
                yield from self._end()
