"""Two checkouts in one interleaved run: a bench from either, in turns, and the ratio of their figures per round.

    git worktree add ../before 5383155
    python -m bench.against ../before --rounds 3 --figures 'images_per_s.median' \\
        -- bench.policies --link-mbit 0 --policies torch no-off auto --repeat 4 --epochs 2

Each checkout runs its own `bench` and packages, with this Python; the C extension must have been built in both
(`python setup.py build_ext --inplace`). A figure's name is its path in the bench's JSON, where the entries of a list
are named by the words they hold. The ratio is new / old. The old checkout may be this commit with one thing undone by
hand; the JSON then calls it dirty.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import arguments, record


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results; 1 when there is no common figure."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    module, *command = options.command
    trees = {"old": options.checkout.resolve(), "new": record.REPOSITORY}
    for name, tree in trees.items():
        if not (tree / f"{module.replace('.', '/')}.py").exists():
            bench.refuse(f"the {name} checkout", f"one that has {module}", tree, "name a bench that both have")
        native = tree / "sophon_loader" / "native"
        if len(list(native.glob("_*.so"))) < sum("PyInit_" in path.read_text() for path in native.glob("*.c")):
            remedy = "run `python setup.py build_ext --inplace` there"
            bench.refuse(f"the {name} checkout", "one with its C extensions built in it", tree, remedy)
    rounds: list[dict[str, dict[str, float]]] = []
    with tqdm(total=2 * options.rounds, file=sys.stderr) as bar:
        for number in range(options.rounds):
            found = {}
            for name in record.in_turns(list(trees), number):
                bar.set_description(name)
                found[name] = figures(trees[name], module, command, options.figures)
                bar.update()
            rounds.append(found)
    ratios = {path: record.spread([one["new"][path] / one["old"][path] for one in rounds]) for path in common(rounds)}
    for path, ratio in ratios.items():
        print(f"{path}: new / old {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})", flush=True)
    describe = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    old = subprocess.run(describe, cwd=trees["old"], capture_output=True, text=True, check=False)
    ran = record.short_command(module, command)
    rows = {"bench": ran, "old": old.stdout.strip() or record.UNKNOWN, "ratios": ratios, "rounds": rounds}
    record.write(options.output, rows)
    return 0 if ratios else 1


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.against", __doc__)
    parser.add_argument("checkout", type=Path, help="The checkout to compare with: the old one.")
    parser.add_argument("--rounds", type=arguments.count(), default=3)
    figures = "Which figures are compared: those whose name this finds."
    parser.add_argument("--figures", type=pattern, default=r"median$", metavar="REGEX", help=figures)
    parser.add_argument("command", nargs="+", help="Behind --: the bench, as MODULE [ARGUMENT ...].")
    return parser


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression, got {text!r}; {error}") from None
    return text


def figures(tree: Path, module: str, command: list[str], wanted: str) -> dict[str, float]:
    """The figures of one run of a bench from a checkout.

    Args:
        tree: the checkout.
        module: the bench.
        command: its arguments.
        wanted: regular expression for the figures' names.
    """
    with tempfile.TemporaryDirectory(prefix="sophon-against-") as folder:
        out = Path(folder) / "out.json"
        run = [sys.executable, "-m", module, *command, "--json", str(out)]
        done = subprocess.run(run, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{module} in {tree} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        rows = json.loads(out.read_text())["rows"]
    return {path: value for path, value in leaves(rows) if re.search(wanted, path) and value}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """(path, number) of everything in a bench's rows.

    Args:
        value: the rows, or a part of them.
        path: of that part.
    """
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield path, float(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{_name(inner) or position}]")


def _name(entry: Any) -> str:
    """The words that tell an entry from its neighbours; none for what has none."""
    if not isinstance(entry, dict) or "round" in entry:
        return ""
    words = ("policy", "case", "part", "workers", "limit", "link_mbit")
    named = [str(entry[key]) for key in words if key in entry]
    return " ".join(named) if isinstance(entry.get("policy", entry.get("case")), str) else ""


def common(rounds: list[dict[str, dict[str, float]]]) -> list[str]:
    """The figures that every run has."""
    runs = [run for found in rounds for run in found.values()]
    return [path for path in runs[0] if all(path in run for run in runs)]


if __name__ == "__main__":
    sys.exit(main())
