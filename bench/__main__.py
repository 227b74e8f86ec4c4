"""All benches: what each of them asks, and how to run them.

    python -m bench                             the list
    python -m bench policies link               these, on the shared pictures
    python -m bench --all                       all of them, about an hour
    python -m bench --all --quick               the short form of most of them, under five minutes

Everything measured goes to bench/raw/NAME.json, which git ignores, and the summary to bench/results/NAME.json; a short
form only to bench/raw/quick/. Each file has a stamp of its own. A bench that fails leaves its last result;
the others go on. `python -m bench.tables` then writes the tables of the pages, `python -m bench.plot` their figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench.arguments import HelpFormatter, image_folder
from bench.catalogue import BENCHES, Run, named, runs
from bench.record import RAW, REPOSITORY, RESULTS, SHARED_DATA
from examples.pictures import make_pictures

MADE = REPOSITORY / "demo-data"
"""Folder for pictures that are made if there are none; the demo's."""
MADE_PICTURES = 300
TOLD_CHARACTERS = 2000
"""Maximum number of characters shown of a failing bench's last output."""


def main(argv: Sequence[str] | None = None) -> int:
    """List the benches, or run some; 1 when one failed or missed its bar."""
    bench = parser()
    options = bench.parse_args(argv)
    if not options.names and not options.all:
        show()
        return 0
    if options.names and options.all:
        bench.error("--all must be given without names, since it stands for all of them")
    folders = picture_folders(options.data)
    todo = runs(folders)
    if options.names:
        try:
            todo = named(options.names, todo)
        except ValueError as error:
            bench.error(f"{error}; `python -m bench` lists them")
    if options.quick:
        todo = [run for run in todo if run.bench.quick is not None]
    failed = []
    progress = tqdm(todo, file=sys.stderr)
    for run in progress:
        progress.set_description(run.name)
        if status := measure(run, options.quick, options.results):
            failed.append(f"{run.name} ({status})")
    print(f"{len(todo) - len(failed)} of {len(todo)} benches ended well", *failed, sep="; failed or below their bar: ")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="A bench, or one of its result files.")
    parser.add_argument("--all", action="store_true", help="Run all of them.")
    parser.add_argument("--quick", action="store_true", help="Run their short forms, which leave no results.")
    what = "ImageFolder trees (default: the shared ones, or made ones)."
    parser.add_argument("--data", type=image_folder, nargs="+", metavar="PATH", help=what)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="Where the summaries go.")
    return parser


def show() -> None:
    """Print the catalogue."""
    table = Table("name", "question", "bar", "minutes", "command", title="python -m bench NAME ...", show_lines=True)
    for bench in BENCHES:
        table.add_row(bench.name, bench.question, bench.bar, f"{bench.minutes:g}", bench.command())
    Console(width=160).print(table)


def picture_folders(given: Sequence[Path] | None) -> dict[str, Path]:
    """The picture folders by name: those given, or the shared ones, or one that is made."""
    if given is not None:
        folders = {folder.name: folder for folder in given}
        if len(folders) < len(given):
            raise SystemExit(f"--data must be folders of different names, got {', '.join(map(str, given))}; rename one")
        return folders
    shared = {folder.name: folder for folder in sorted(SHARED_DATA.glob("*")) if folder.is_dir()}
    if shared:
        return shared
    return {"generated": MADE if MADE.is_dir() else make_pictures(MADE, MADE_PICTURES)}


def measure(run: Run, quick: bool, results: Path) -> int:
    """Run a bench; returns its exit status.

    Args:
        run: which.
        quick: whether its short form.
        results: folder for the summary, which a short form does not write.
    """
    raw = RAW / "quick" / f"{run.name}.json" if quick else RAW / f"{run.name}.json"
    command = [sys.executable, "-m", run.bench.module, *run.arguments(quick), "--json", str(raw)]
    if not quick:
        command += ["--summary", str(results / f"{run.name}.json")]
    started_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    tqdm.write(f"{run.name}: {(time.perf_counter() - started_s) / 60:.1f} minutes, status {done.returncode}")
    tqdm.write(done.stdout if done.returncode == 0 else (done.stdout + done.stderr)[-TOLD_CHARACTERS:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
