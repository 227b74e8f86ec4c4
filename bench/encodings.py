"""What each encoding weighs and costs behind a random-resized crop, and what each set of choices saves.

    python -m bench.encodings --data PATH --json encodings.json

For every file, --epochs random crops: bytes of the file, of the part cut in its bitstream, and of the 224 x 224 crop in
each encoding; CPU milliseconds to encode and to decode, one thread. Each value that comes back is compared with the one
that went in. Traffic is the sum over samples of the smallest of a set's choices, as times fewer bytes than the files.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torchvision import transforms
from tqdm import tqdm

from bench import record
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.registry import decode, encode
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.pushdown import PartOfFile, part_of
from sophon_loader.pipeline.randomness import Draw

SETS = (
    ("file",),
    ("file", "pixels"),
    ("file", "roi-jpeg"),
    ("file", "roi-jpeg", "pixels"),
    ("file", "roi-jpeg", "pixels", "webp"),
    ("file", "roi-jpeg", "pixels", "webp", "jxl"),
)
Figures = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--epochs", type=int, default=1, help="crops per file")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = options.data or record.default_data()
    chain = chain_of(transforms.Compose([transforms.RandomResizedCrop(224)]))
    names = [name for name in encoding_names() if name != "array"]
    nbytes: Figures = {name: [] for name in names}
    encode_ms: Figures = {name: [] for name in names}
    decode_ms: Figures = {name: [] for name in names}
    files = sorted(data.glob("*/*"))
    for index, path in enumerate(tqdm(files, desc="files", file=sys.stderr)):
        content = path.read_bytes()
        for epoch in range(options.epochs):
            for name in names:
                size, encoding_s, decoding_s = one(chain, content, Draw(0, epoch, index), name)
                nbytes[name].append(size)
                encode_ms[name].append(1000 * encoding_s)
                decode_ms[name].append(1000 * decoding_s)
    rows = [
        {name: float(np.mean(values[encoding])) for name, values in
         (("bytes", nbytes), ("encode_ms", encode_ms), ("decode_ms", decode_ms))} | {"encoding": encoding}
        for encoding in names
    ]  # fmt: skip
    traffic = {
        " + ".join(chosen): sum(nbytes["file"]) / float(np.min([nbytes[name] for name in chosen], axis=0).sum())
        for chosen in SETS
        if set(chosen) <= set(names)
    }
    show(data.name, rows, traffic)
    record.write(options.json, "bench.encodings", {"data": data.name, "encodings": rows, "times_fewer_bytes": traffic})
    return 0


def one(chain: Chain, content: bytes, draw: Draw, name: str) -> tuple[int, float, float]:
    """(bytes, seconds to encode, seconds to decode) of one sample; `roi-jpeg` falls back to the file."""
    value: object = content if name in ("file", "roi-jpeg") else chain.run(content, 0, 2, draw)
    started = time.thread_time()
    encoded: Encoded
    if name == "roi-jpeg":
        part = part_of(content, chain, draw)
        encoded = encode(part, name) if isinstance(part, PartOfFile) else encode(content, "file")
    else:
        encoded = encode(value, name)
    middle = time.thread_time()
    back = decode(encoded.encoding, encoded.meta, encoded.payload)
    ended = time.thread_time()
    if name == "roi-jpeg":
        back, value = finish(chain, back, draw), chain.run(content, 0, 2, draw)
    same = back == value if isinstance(value, bytes) else np.array_equal(np.asarray(back), np.asarray(value))
    if not same:
        raise SystemExit(f"{name} must give back what it was given, sample {draw.index} differs")
    return len(encoded.payload), middle - started, ended - middle


def finish(chain: Chain, back: object, draw: Draw) -> object:
    """The crop from what roi-jpeg delivered."""
    if isinstance(back, PartOfFile):
        return chain.run(back.data, 0, 2, draw, window=back.window)
    return chain.run(back, 0, 2, draw)


def show(data: str, rows: list[dict[str, object]], traffic: dict[str, float]) -> None:
    """Print both tables."""
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
