"""Size and cost of each encoding after a random-resized crop, and the savings of each set of choices.

    python -m bench.encodings --data PATH --json encodings.json

For every file, --epochs random crops. Measured are bytes of the file, of the part cut in its bitstream, and of the
224 x 224 crop in each encoding; and CPU milliseconds to encode and to decode, one thread. Each decoded value is
compared with the original. A file that an encoding does not take counts as itself. Traffic is the sum over samples of
the smallest of a set's choices, as the factor by which the files have more bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torchvision import transforms
from tqdm import tqdm

from bench import arguments, record
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import decode, encode, used_at
from sophon_loader.errors import EncodingError
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.described import begin_on_file, run_from_part
from sophon_loader.pipeline.randomness import Draw

SETS = (
    ("file",),
    ("file", "pixels"),
    ("file", "roi-jpeg"),
    ("file", "roi-jpeg", "pixels"),
    ("file", "roi-jpeg", "pixels", "webp"),
    ("file", "roi-jpeg", "pixels", "webp", "htj2k"),
    ("file", "roi-jpeg", "pixels", "webp", "htj2k", "jpegls", "jxl"),
    ("file", "roi-jpeg", "pixels", "webp", "htj2k", "jpegls", "jxl", "lepton", "roi-lepton"),
)
Figures = dict[str, list[float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print two tables, write the results."""
    options = arguments.parsed(parser(), argv)
    torch.set_num_threads(1)
    chain = chain_of(transforms.Compose([transforms.RandomResizedCrop(224)]))
    names = [name for name in encoding_names() if name != "array"]
    nbytes: Figures = {name: [] for name in names}
    encode_ms: Figures = {name: [] for name in names}
    decode_ms: Figures = {name: [] for name in names}
    files = sorted(options.data.glob("*/*"))
    for index, path in enumerate(tqdm(files, desc="files", file=sys.stderr)):
        content = path.read_bytes()
        for epoch in range(options.epochs):
            for name in names:
                size, encoding_s, decoding_s = one(chain, content, Draw(0, epoch, index), name)
                nbytes[name].append(size)
                encode_ms[name].append(1000 * encoding_s)
                decode_ms[name].append(1000 * decoding_s)
    figures = {"bytes": nbytes, "encode_ms": encode_ms, "decode_ms": decode_ms}
    rows = [
        {"encoding": name, **{figure: float(np.mean(values[name])) for figure, values in figures.items()}}
        for name in names
    ]
    traffic = {
        " + ".join(chosen): sum(nbytes["file"]) / float(np.min([nbytes[name] for name in chosen], axis=0).sum())
        for chosen in SETS
        if set(chosen) <= set(names)
    }
    show(options.data.name, rows, traffic)
    found = {"data": options.data.name, "crops": len(nbytes["file"]), "encodings": rows, "times_fewer_bytes": traffic}
    record.write(options.output, found)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.encodings", __doc__, pictures=True)
    parser.add_argument("--epochs", type=arguments.count(), default=1, help="Crops per file.")
    return parser


def one(chain: Chain, content: bytes, draw: Draw, name: str) -> tuple[int, float, float]:
    """(bytes, seconds to encode, seconds to decode) of one sample.

    Args:
        chain: the crop.
        content: of the file.
        draw: which crop.
        name: of the encoding.
    """
    of_file = used_at(name) in (UsedAt.FILE, UsedAt.FIRST_REGION)
    value: object = content if of_file else chain.run(content, 0, 2, draw)
    started = time.thread_time()
    encoded = encoded_file(chain, content, draw, name) if of_file else encode(value, name)
    middle = time.thread_time()
    back = decode(encoded.encoding, encoded.meta, encoded.payload)
    ended = time.thread_time()
    if used_at(name) is UsedAt.FIRST_REGION:
        back, value = finish(chain, back, draw), chain.run(content, 0, 2, draw)
    same = back == value if isinstance(value, bytes) else np.array_equal(np.asarray(back), np.asarray(value))
    if not same:
        raise RuntimeError(f"{name} must give back what it was given, sample {draw.index} differs")
    return len(encoded.payload), middle - started, ended - middle


def encoded_file(chain: Chain, content: bytes, draw: Draw, name: str) -> Encoded:
    """A file, or the part of it that is read; the file as it is where the encoding does not take that.

    Args:
        chain: the crop.
        content: of the file.
        draw: which crop.
        name: of the encoding.
    """
    value: object = content
    if used_at(name) is UsedAt.FIRST_REGION:
        begun = begin_on_file(chain, content, draw)
        value = None if begun is None else begun.part()
    try:
        return encode(value, name)
    except EncodingError:
        return encode(content, "file")


def finish(chain: Chain, back: object, draw: Draw) -> object:
    """The crop from what was delivered of a file.

    Args:
        chain: the crop.
        back: what was decoded.
        draw: which crop.
    """
    if isinstance(back, PartOfFile):
        return run_from_part(chain, back, draw)[1]
    return chain.run(back, 0, 2, draw)


def show(data: str, rows: list[dict[str, Any]], traffic: dict[str, float]) -> None:
    """Print both tables.

    Args:
        data: name of the pictures.
        rows: per encoding.
        traffic: times fewer bytes, per set of choices.
    """
    table = Table("encoding", "bytes", "encode ms", "decode ms", title=data)
    for row in rows:
        times = (f"{row['encode_ms']:.2f}", f"{row['decode_ms']:.2f}")
        table.add_row(str(row["encoding"]), f"{row['bytes']:,.0f}", *times)
    choices = Table("choices", "times fewer bytes")
    for chosen, ratio in traffic.items():
        choices.add_row(chosen, f"{ratio:.2f}")
    Console(width=100).print(table, choices)


if __name__ == "__main__":
    sys.exit(main())
