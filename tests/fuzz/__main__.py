"""Feed any bytes to what reads another host's: `make fuzz MINUTES=5`.

    python -m tests.fuzz --minutes 5             every target, five minutes each
    python -m tests.fuzz header webp --minutes 1

With atheris (https://github.com/google/atheris), which is no dependency of the project, inputs are led by coverage;
without it, they are changed by chance. What was found on the way is in `build/fuzz/NAME`, and begins the next run. What
fails is written to `build/fuzz/NAME.failed*`. What is to be kept is a line of hexadecimal digits in `corpus/NAME.txt`,
which `make test` replays:

    python -m tests.fuzz header --keep build/fuzz/header.failed*
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from sophon_loader.encodings.catalogue import encoding_names

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
"""Inputs that are kept, in a file for each target."""
FOUND = ROOT / "build" / "fuzz"
NAMES = (
    "header",
    "desk",
    "registration",
    "listing",
    "entry",
    "program",
    "program-on-file",
    "tar",
    "zip",
    "mds",
    "archive-index",
    *encoding_names(),
)
MAX_RSS_MB = 2048
MAX_INPUT_S = 3


def kept(name: str) -> list[bytes]:
    """The inputs of a target that are kept."""
    path = CORPUS / f"{name}.txt"
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def _guided(name: str, seconds: int) -> None:
    """Fuzz a target with atheris; ends this process."""
    import atheris

    with atheris.instrument_imports(include=["sophon_loader", "storage_agent", "msgpack"]):
        from tests.fuzz.targets import targets

    target = targets()[name]
    (FOUND / name).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*target.seeds(), *kept(name)]):
        (FOUND / name / f"kept-{number}").write_bytes(data)
    flags = {
        "max_total_time": seconds,
        "timeout": MAX_INPUT_S,
        "rss_limit_mb": MAX_RSS_MB,
        "artifact_prefix": FOUND / f"{name}.failed-",
        "verbosity": 0,
        "print_final_stats": 1,
    }
    atheris.Setup([name, *(f"-{flag}={value}" for flag, value in flags.items()), str(FOUND / name)], target.run)
    atheris.Fuzz()


def _by_chance(name: str, seconds: int) -> None:
    from tests.fuzz.mutations import mutated
    from tests.fuzz.targets import targets

    target = targets()[name]
    end_s = time.monotonic() + seconds
    for data in mutated([*target.seeds(), *kept(name)], time.time_ns()):
        try:
            target.run(data)
        except Exception:
            FOUND.mkdir(parents=True, exist_ok=True)
            (FOUND / f"{name}.failed").write_bytes(data)
            raise
        if time.monotonic() > end_s:
            break


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all of them")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each; default %(default)s")
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE", help="add these to what is kept for NAME")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(NAMES):
        parser.error(f"NAME must be one of {', '.join(NAMES)}, got {', '.join(unknown)}")
    if asked.keep:
        (name,) = asked.names
        inputs = {data.hex(): None for data in (*kept(name), *(path.read_bytes() for path in asked.keep))}
        (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in inputs))
        return 0
    seconds = max(1, round(60 * asked.minutes))
    if asked.alone:
        (name,) = asked.names
        (_guided if importlib.util.find_spec("atheris") else _by_chance)(name, seconds)
        return 0
    failed = []
    for name in asked.names or NAMES:
        print(f"--- {name}", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", name, "--alone", "--minutes", str(asked.minutes)]
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}; see {FOUND.relative_to(ROOT)}" if failed else "no target failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
