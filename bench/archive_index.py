"""Costs of the index of archives: making it, starting from it, and the memory of the agent's processes.

    python -m bench.archive_index --json archive-index.json

Made-up flat archives: pictures of 100 bytes, each with a label, as in WebDataset's shards. Three exports of them: few
members, whose figures are the agent's own; all members in one archive; all in ten, whose indexes are merged.

*make*: `sophon-agent index`, by its time beyond a second call, which finds the index; peak memory of the process that
indexes. *start*: from before an agent's process to its announcement, with the index there. *memory*: of the agent's
processes after `RemoteFiles` has listed the samples. It is given as private pages, and as the proportional share of
all, which counts the mapped index. Bar: a start within 2 s.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from bench import arguments, record
from bench.children import local_agent, wait_for_worker
from bench.loading import READ_EVERY_S, quiet
from sophon_loader import RemoteFiles

BAR_START_S = 2.0
FEW = 1000
ARCHIVES = 10
"""In which the same members are once more."""
SAMPLE = (("cls", b"7"), ("jpg", bytes(100)))
"""Its members; each takes two blocks of an archive."""
DIGITS = 8
"""Number of digits in a sample's name."""
INDEX = (sys.executable, "-m", "storage_agent", "index")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results; 1 where the bar is missed."""
    options = arguments.parsed(parser(), argv)
    quiet()
    exports = {"few": (FEW, 1), "one archive": (options.members, 1), "several archives": (options.members, ARCHIVES)}
    rows = []
    for name, (members, archives) in tqdm(exports.items(), desc="exports", file=sys.stderr):
        with tempfile.TemporaryDirectory() as made:
            rows.append({"export": name, **measured(Path(made), members, archives, options.rounds)})
            for figure, value in rows[-1].items():
                print(f"{name}, {figure}: {value}")
    record.write(options.output, {"exports": rows, "bar_start_s": BAR_START_S})
    return int(any(row["start_s"]["median"] > BAR_START_S for row in rows))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.archive_index", __doc__)
    parser.add_argument("--members", type=arguments.count(FEW), default=1_000_000, help="Of all archives together.")
    parser.add_argument("--rounds", type=arguments.count(), default=5, help="Starts of an agent.")
    return parser


def measured(folder: Path, members: int, archives: int, rounds: int) -> dict[str, Any]:
    """The figures of one export.

    Args:
        folder: an empty one.
        members: of all archives together, about.
        archives: how many.
        rounds: starts of an agent.
    """
    samples = members // len(SAMPLE) // archives
    for number in range(archives):
        write_archive(folder / f"{number}.tar", samples)
    location, indexes = f"tar://{folder}/{{0..{archives - 1}}}.tar", folder / "indexes"
    members = archives * samples * len(SAMPLE)
    cold, warm = indexed(location, indexes), indexed(location, indexes)
    whole = Path(cold.pop("path"))
    names_nbytes = members * (DIGITS + len(".jpg") + (len("0/") if archives > 1 else 0))
    starts_s = [started(location, indexes, archives * samples)["start_s"] for _ in range(rounds - 1)]
    last = started(location, indexes, archives * samples, lists=True)
    return {
        "archives": archives,
        "members": members,
        "nbytes_per_member_beside_names": (whole.stat().st_size - names_nbytes) / members,
        "nbytes_on_disk": sum(path.stat().st_size for path in indexes.iterdir()),
        "make_us_per_member": (cold.pop("took_s") - warm["took_s"]) / members * 1e6,
        **cold,
        "start_s": record.spread([*starts_s, last.pop("start_s")]),
        **last,
    }


def write_archive(path: Path, samples: int) -> None:
    """A tar file of made-up samples, by hand: tarfile would take a minute for a million members."""
    headers = []
    for extension, body in SAMPLE:
        entry = tarfile.TarInfo(f"{0:0{DIGITS}}.{extension}")
        entry.size = len(body)
        header = entry.tobuf(tarfile.USTAR_FORMAT)
        checksum = int(header[148:156].rstrip(b" \0"), 8) - DIGITS * ord("0")
        headers.append((checksum, header[DIGITS:148], header[156:] + body.ljust(tarfile.BLOCKSIZE, b"\0")))
    with open(path, "wb", buffering=1 << 20) as file:
        for number in range(samples):
            name = b"%0*d" % (DIGITS, number)
            for checksum, before, behind in headers:
                file.write(b"%b%b%06o\0 %b" % (name, before, checksum + sum(name), behind))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def indexed(location: str, indexes: Path) -> dict[str, Any]:
    """One call of `sophon-agent index`: its time, the path it tells, the most memory of the process that indexes."""
    most = {"make_pss_mb": 0.0, "make_private_mb": 0.0}
    started_s = time.perf_counter()
    command = [*INDEX, location, "--index-folder", str(indexes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=record.REPOSITORY) as one:
        ended = threading.Event()
        reader = threading.Thread(target=_read_memory, args=(psutil.Process(one.pid), ended, most), name="memory")
        reader.start()
        told, _ = one.communicate()
        took_s = time.perf_counter() - started_s
        ended.set()
        reader.join()
    if one.returncode:
        raise SystemExit(one.returncode)
    return {"took_s": took_s, "path": told.strip(), **most}


def _read_memory(agent: psutil.Process, ended: threading.Event, most: dict[str, float]) -> None:
    while not ended.wait(READ_EVERY_S):
        with suppress(psutil.Error):
            for child in agent.children():
                pss_mb, private_mb = memory_mb(child)
                most["make_pss_mb"] = max(most["make_pss_mb"], pss_mb)
                most["make_private_mb"] = max(most["make_private_mb"], private_mb)


def started(location: str, indexes: Path, samples: int, lists: bool = False) -> dict[str, float]:
    """The start of an agent that has its index, and its memory once the samples have been listed.

    Args:
        location: of the archives.
        indexes: the folder of their index.
        samples: in all archives.
        lists: whether the samples are listed.
    """
    started_s = time.perf_counter()
    with local_agent(location, "--index-folder", str(indexes)) as (address, pid):
        found = {"start_s": time.perf_counter() - started_s}
        if not lists:
            return found
        wait_for_worker(address)
        agent = psutil.Process(pid)
        found["broker_pss_mb"], found["broker_private_mb"] = memory_mb(agent)
        started_s = time.perf_counter()
        assert len(RemoteFiles(address)) == samples
        found["listing_us_per_sample"] = (time.perf_counter() - started_s) / samples * 1e6
        found["listed_broker_pss_mb"], found["listed_broker_private_mb"] = memory_mb(agent)
        children = [memory_mb(child) for child in agent.children(recursive=True)]
        found["children_pss_mb"] = sum(pss_mb for pss_mb, _ in children)
        found["children_private_mb"] = sum(private_mb for _, private_mb in children)
        return found


def memory_mb(process: psutil.Process) -> tuple[float, float]:
    """(proportional share, private pages) of a process."""
    memory = process.memory_full_info()
    return memory.pss / 1e6, memory.uss / 1e6


if __name__ == "__main__":
    sys.exit(main())
