"""All benches, one after the other, into one file.

    python -m bench.everything                      bench/results/<date>-<commit>.json, about an hour
    python -m bench.everything --quick              the short form of most of them, under five minutes
    python -m bench.everything --only policies-imagenet link

The file holds, by name, what each bench writes with --json, and the seconds it took. A bench that fails is kept with
what it said, one that misses a bar has a status other than 0; the others go on. `python -m bench.plot FILE` draws it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from bench import record
from examples.demo import default_data

LOW = ["--policies", "no-off", "resize-off", "sophon", "auto", "--epochs", "4"]
CPU = ["--link-mbit", "0", "--policies", "torch", "no-off", "auto"]
LINK = ["--parts", "pictures", "--workers", "1", "--rounds", "1", "--repeat", "1"]
HOT = ["--policies", "torch", "auto", "--rounds", "1", "--repeat", "1"]
TOLD_CHARACTERS = 2000
"""Of what a failing bench said last."""


class Step(NamedTuple):
    """A bench, its arguments, and those of its short form (None: left out there)."""

    name: str
    module: str
    arguments: list[str]
    quick: list[str] | None


def steps(folders: dict[str, Path]) -> list[Step]:
    """Everything there is to run on these picture folders."""
    found = []
    short = ["--policies", "no-off", "sophon", "auto", "--epochs", "1"]
    for name, folder in folders.items():
        data = ["--data", str(folder)]
        found.append(Step(f"policies-{name}", "bench.policies", [*data, "--epochs", "5"], [*data, *short]))
        found += [
            Step(f"policies-{name}-{cores}", "bench.policies", [*data, "--agent-cores", cores, *LOW], None)
            for cores in ("0.25", "0.5")
        ]
    first = ["--data", str(next(iter(folders.values())))]
    found += [
        Step(
            "cpu-bound",
            "bench.policies",
            [*first, *CPU, "--repeat", "4", "--epochs", "5"],
            [*first, *CPU, "--epochs", "1"],
        ),
        Step("link", "bench.link", [*first, "--rounds", "2"], [*first, *LINK]),
        Step("hotpath", "bench.hotpath", first, [*first, *HOT]),
        Step(
            "overhead", "bench.overhead", [*first, "--rounds", "3"], [*first, "--only", "first-batch", "--rounds", "1"]
        ),
        Step("agent", "bench.agent", first, [*first, "--rounds", "1", "--mb", "300"]),
        Step("tail", "bench.tail", first, None),
        Step("profiling", "bench.profiling", first, None),
        Step("recovery", "bench.recovery", ["--data", str(list(folders.values())[-1])], None),
        Step("planner", "bench.planner", [], ["--samples", "100000"]),
        Step("jpegcrop", "bench.jpegcrop", first, [*first, "--rounds", "1"]),
    ]
    for name, folder in folders.items():
        data = ["--data", str(folder)]
        found.append(Step(f"encodings-{name}", "bench.encodings", data, None))
        found.append(Step(f"peers-{name}", "bench.peers", data, None))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", help="ImageFolder trees; default: the shared ones, or made")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these benches, by their names in the file")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    todo = [step for step in steps(data_folders(options.data)) if not options.quick or step.quick is not None]
    if options.only:
        if unknown := set(options.only) - {step.name for step in todo}:
            parser.error(f"--only must be of {[step.name for step in todo]}, got {sorted(unknown)}")
        todo = [step for step in todo if step.name in options.only]
    out = options.json or default_out(options.quick)
    benches: dict[str, Any] = json.loads(out.read_text())["rows"]["benches"] if options.only and out.exists() else {}
    bar = tqdm(todo, file=sys.stderr)
    for step in bar:
        bar.set_description(step.name)
        arguments = step.quick if options.quick and step.quick is not None else step.arguments
        benches[step.name] = run(step.module, arguments)
        record.write(out, "bench.everything", {"quick": options.quick, "benches": benches})  # what is there is kept
    failed = [name for name, bench in benches.items() if "error" in bench or bench["status"]]
    print(f"{len(benches) - len(failed)} benches in {out}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def data_folders(given: list[Path] | None) -> dict[str, Path]:
    """The picture folders by name: those given, or the shared ones, or one that is made."""
    if given:
        folders = {folder.name: folder.resolve() for folder in given}
        if len(folders) < len(given):
            raise SystemExit(f"--data must be folders of different names, got {[str(folder) for folder in given]}")
        return folders
    shared = {folder.name: folder for folder in sorted(record.SHARED_DATA.glob("*")) if folder.is_dir()}
    return shared or {"generated": default_data()}


def default_out(quick: bool) -> Path:
    """bench/results/<date>-<commit>.json, or -quick.json; --only adds to what is there."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-{commit}{'-quick' * quick}.json"


def run(module: str, arguments: list[str]) -> dict[str, Any]:
    """What one bench writes, or why it does not."""
    with tempfile.TemporaryDirectory(prefix="sophon-bench-") as folder:
        out = Path(folder, "out.json")
        started_s = time.perf_counter()
        command = [sys.executable, "-m", module, *arguments, "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took = {"took_s": round(time.perf_counter() - started_s, 1), "status": done.returncode}
        if not out.exists():
            said = (done.stdout + done.stderr)[-TOLD_CHARACTERS:]
            return {**took, "error": f"ended with status {done.returncode}: {said}"}
        tqdm.write(done.stdout)
        written: dict[str, Any] = json.loads(out.read_text())
        about = {name: value for name, value in written.items() if name not in ("commit", "machine", "versions")}
        return {**took, **about}


if __name__ == "__main__":
    sys.exit(main())
