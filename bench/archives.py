"""Costs of archives: throughput over tar and zip files, relative to that over the folder.

    python -m bench.archives --json archives.json

Agents of one worker each serve the same pictures over loopback: as a folder, a tar and a zip file with a folder per
class, and as the flat shards of bench.peers' webdataset. Loaders of one worker each take turns, epoch by epoch, and
which goes first changes every round. A round's figure is the ratio of samples/s to those over the folder. With a limit,
each agent paces its replies to it. Bar: median >= 0.95. `bench.archive_index` measures the cost of the index.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import arguments, record
from bench.children import local_agent
from bench.loading import our_loader, quiet, rates_in_turns, samples_per_s, training_pipeline
from bench.peers.shards import location_of, write_shards
from sophon_loader import RemoteFiles, RemoteImageFolder

BAR = 0.95
POLICIES = ("no-off", "auto")
FOLDER = "folder"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results; 1 where the bar is missed."""
    options = arguments.parsed(parser(), argv)
    quiet()
    with tempfile.TemporaryDirectory() as made:
        exports = written(options.data, Path(made))
        loaded = [
            row
            for mbit in options.link_mbit
            for policy in options.policies
            for row in loaders(exports, Path(made), policy, mbit, options.rounds)
        ]
    summary = summarise(loaded)
    for row in summary:
        what = f"{row['policy']} at {row['link_mbit']:g} Mbit/s, {row['export']} / folder"
        print(record.judged(what, row["ratio"], BAR))
    record.write(options.output, {"rounds": loaded, "summary": summary, "bar": BAR})
    return int(any(row["ratio"]["median"] < BAR for row in summary))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.archives", __doc__, pictures=True)
    add = parser.add_argument
    add(
        "--policies", type=arguments.policy(), nargs="+", default=list(POLICIES), action=arguments.Distinct, metavar="P"
    )
    add(
        "--link-mbit",
        type=arguments.number(0, "of 0 or more"),
        nargs="+",
        default=[0.0, 100.0],
        help="Limits; 0: none.",
    )
    add("--rounds", type=arguments.count(), default=10)
    return parser


def written(data: Path, folder: Path) -> dict[str, str]:
    """The exports of the pictures in each form, made in a folder.

    Args:
        data: an ImageFolder tree.
        folder: an empty one.
    """
    with tarfile.open(folder / "x.tar", "w") as tar, zipfile.ZipFile(folder / "x.zip", "w") as zipped:
        for path in sorted(data.glob("*/*")):
            name = str(path.relative_to(data))
            tar.add(path, name)
            zipped.write(path, name)
    (folder / "flat").mkdir()
    write_shards(data, folder / "flat")
    flat = location_of(folder / "flat")
    return {FOLDER: str(data), "tar": f"tar://{folder}/x.tar", "zip": f"zip://{folder}/x.zip", "flat": flat}


def loaders(exports: dict[str, str], made: Path, policy: str, mbit: float, rounds: int) -> list[dict[str, Any]]:
    """Samples per second over each export, round by round.

    Args:
        exports: by name.
        made: a folder for the indexes.
        policy: of all loaders.
        mbit: that each agent paces its replies to; 0 for none.
        rounds: epochs of each loader that count.
    """
    limit = ["--limit-mbit", f"{mbit:g}"] if mbit else []
    with ExitStack() as stack:
        every = {}
        for name, location in exports.items():
            address, _ = stack.enter_context(local_agent(location, "--index-folder", str(made / "indexes"), *limit))
            dataset: Any = (RemoteFiles if name == "flat" else RemoteImageFolder)(address, training_pipeline())
            every[name] = our_loader(dataset, 1, agent=address, policy=policy)
            stack.callback(every[name].close)
            samples_per_s(every[name])  # starts workers, fills the page cache, and lets a policy find its choices
        return rates_in_turns(every, rounds, f"{policy}, {mbit:g} Mbit/s", {"policy": policy, "link_mbit": mbit})


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ratio to the folder, per limit, policy and export.

    Args:
        rows: of `loaders`.
    """
    summary = []
    for mbit, policy in dict.fromkeys((row["link_mbit"], row["policy"]) for row in rows):
        its = [row for row in rows if (row["link_mbit"], row["policy"]) == (mbit, policy)]
        for export in ("tar", "zip", "flat"):
            about = {"link_mbit": mbit, "policy": policy, "export": export}
            rates = record.spread([row[export] for row in its])
            ratio = record.spread([row[export] / row[FOLDER] for row in its])
            summary.append({**about, "ratio": ratio, "samples_per_s": rates})
    return summary


if __name__ == "__main__":
    sys.exit(main())
