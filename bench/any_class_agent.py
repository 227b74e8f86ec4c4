"""Datasets of user-defined classes whose pictures an agent sends: images per second and bytes, relative to whole files.

    python -m bench.any_class_agent --data PATH --json single-pictures.json
    python -m bench.any_class_agent --samples 200 --rounds 2

The shapes are those of bench.any_class. Loader and agent run on linked hosts (`bench/bed`; needs root), a core each.
Two loaders of each shape, `auto` and `no-off`, take turns, epoch by epoch, after two epochs of each; a ratio is of one
round. Then the bytes of the last epoch of `auto` are compared with the least that could have crossed. Of each picture
that is the smallest of its file, the part that is read, and the crop in any lossless encoding. The loaders' workers
write down their requests for that.

Bars: images per second of `auto` at least 1.5 times those of `no-off` where a crop comes first; bytes at most 1.1 times
the least.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.any_class import SHAPES, Pictures
from bench.bed import LinkedHosts
from bench.children import LOADER_CORE, Child, Orders, agent_address, child, start_agent
from bench.loading import our_loader, quiet
from sophon_loader.encodings.registry import encodings
from sophon_loader.errors import EncodingError
from sophon_loader.kinds.image.execute import begin_program, image_at, part_of_begun
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.programs.program import Program
from sophon_loader.workers.agent_pictures import AgentPictures

RATE_BAR, BYTES_BAR = 1.5, 1.1
AUTO, NO_OFF = "auto", "no-off"
CROPS_FIRST = [
    "RandomResizedCrop, flip, ToTensor, Normalize",
    "the same, from `open(path, 'rb')`",
    "the same, behind `exif_transpose`",
    "crop and resize, then numpy",
]
OTHERS = ["Resize, CenterCrop, ToTensor, Normalize", "two views of a picture"]
_KINDS = {".jpg", ".jpeg"}


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.any_class_agent", __doc__, pictures=True)
    add = parser.add_argument
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--samples", type=arguments.count(), default=600, help="Of an epoch; pictures are repeated, with other crops.")
    add("--rounds", type=arguments.count(), default=3)
    add("--workers", type=arguments.count(), default=4)
    add("--batch-size", type=arguments.count(), default=16)
    return parser


@contextmanager
def loader_of(address: str, shape: str, policy: str, options: dict[str, Any], noted: str) -> Iterator[Orders]:
    """A loader. Orders: `epoch`, and `note` to write down requests from now on.

    Args:
        address: of the agent.
        shape: of its samples.
        policy: of the loader.
        options: of the bench: data, samples, workers, batch_size.
        noted: folder for the requests; each process has a file of its own.
    """
    quiet()
    ask, noting = AgentPictures.ask, Path(noted) / "on"

    def noting_ask(self: AgentPictures, path: str, nbytes: int, program: Program, *, pixels: bool) -> Any:
        if noting.exists():
            with (Path(noted) / f"{os.getpid()}.txt").open("a") as out:
                print(path, program.pack().hex() if program.steps else "", sep="\t", file=out)
        return ask(self, path, nbytes, program, pixels=pixels)

    AgentPictures.ask = noting_ask  # type: ignore[method-assign]
    files = pictures(Path(options["data"]))
    repeated = list(itertools.islice(itertools.cycle(files), options["samples"]))
    torch.manual_seed(0)
    given = {"agent": address, "policy": policy}
    loader = our_loader(Pictures(repeated, shape), options["workers"], options["batch_size"], **given)

    def epoch(_: str) -> dict[str, Any]:
        for _batch in loader:
            pass
        told = loader.report().as_dict()
        return {name: told[name] for name in ("seconds", "wire_bytes", "file_bytes", "samples", "choices", "fallbacks")}

    def note(_: str) -> None:
        noting.touch()

    yield {"epoch": epoch, "note": note}
    loader.close()


def pictures(data: Path) -> list[Path]:
    """The JPEG files below a folder."""
    return sorted(one for one in data.rglob("*") if one.suffix.lower() in _KINDS)


def least_nbytes(path: str, packed: str) -> int:
    """Bytes of the smallest of a picture's file, the part that its program reads, and its pixels in any encoding.

    Args:
        path: of the file.
        packed: program in hexadecimal; "" for the file.
    """
    file = Path(path).read_bytes()
    if not packed:
        return len(file)
    begun, found = begin_program(Program.unpack(bytes.fromhex(packed)), file), [len(file)]
    part = part_of_begun(begun)
    if isinstance(part, PartOfFile):
        found.append(len(part.data))
    for segment in SEGMENTS[1:4]:
        image = image_at(begun, segment)
        image.info = {}
        for encoding in encodings().values():
            if encoding.accepts(image):
                try:
                    found.append(len(encoding.encode(image).payload))
                except EncodingError:
                    continue
    return min(found)


def measured(shape: str, options: Any, rounds: int) -> dict[str, Any]:
    """A shape's row: epochs of both policies, in turns, and the least bytes of the last one of `auto`."""
    plain = {"data": str(options.data), "samples": options.samples}
    plain |= {"workers": options.workers, "batch_size": options.batch_size}
    with ExitStack() as stack:
        noted = stack.enter_context(tempfile.TemporaryDirectory(prefix="sophon-bench-"))
        bed = stack.enter_context(LinkedHosts(options.link_mbit).open())
        start_agent(bed, options.data, cores=None)
        loaders: dict[str, Child] = {}
        for policy in (AUTO, NO_OFF):
            told = {"address": agent_address(bed), "shape": shape, "policy": policy, "options": plain}
            into = noted if policy == AUTO else str(Path(noted) / "none")
            loaders[policy] = stack.enter_context(
                child(bed.loader_host, LOADER_CORE, loader_of, {**told, "noted": into})
            )
        for _ in range(2):
            for one in loaders.values():
                one.order("epoch")
        rows: dict[str, list[dict[str, Any]]] = {policy: [] for policy in loaders}
        for number in tqdm(range(rounds), desc=shape, unit="round", file=sys.stderr):
            for policy in record.in_turns(list(loaders), number):
                if number == rounds - 1 and policy == AUTO:
                    loaders[policy].order("note")
                rows[policy].append(loaders[policy].order("epoch"))
        requests = [line.split("\t") for path in Path(noted).glob("*.txt") for line in path.read_text().splitlines()]
    pairs = list(zip(rows[AUTO], rows[NO_OFF], strict=True))
    least = sum(least_nbytes(*one) for one in tqdm(requests, desc="least bytes", file=sys.stderr))
    return {
        "shape": shape,
        "crop_first": shape in CROPS_FIRST,
        "images_per_s": {
            name: record.spread([options.samples / row["seconds"] for row in rows[name]]) for name in rows
        },
        "rate_ratio": record.spread([other["seconds"] / one["seconds"] for one, other in pairs]),
        "bytes_ratio": record.spread([one["wire_bytes"] / other["wire_bytes"] for one, other in pairs]),
        "bytes_of_least": rows[AUTO][-1]["wire_bytes"] / least,
        "requests": len(requests),
        "epochs": rows,
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of the rows."""
    columns = ("a sample", "no-off, images/s", "auto, images/s", "ratio", "bytes, of no-off's", "bytes, of the least")
    table = Table(*columns, title="datasets of user-defined classes with an agent")
    for row in rows:
        rate, nbytes, of = row["rate_ratio"], row["bytes_ratio"], row["images_per_s"]
        table.add_row(
            row["shape"],
            f"{of[NO_OFF]['median']:.0f}",
            f"{of[AUTO]['median']:.0f}",
            f"{rate['median']:.2f} ({rate['min']:.2f}-{rate['max']:.2f})",
            f"{nbytes['median']:.2f}",
            f"{row['bytes_of_least']:.2f}",
        )
    Console(width=150).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    assert {*CROPS_FIRST, *OTHERS} <= {*SHAPES}
    rows = [measured(shape, options, options.rounds) for shape in (*CROPS_FIRST, *OTHERS)]
    show(rows)
    record.write(options.output, {"settings": {"data": options.data.name}, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
