"""Our C under the address and undefined-behaviour sanitizers: the fuzzer's seeds, each under 400 mutations, drawn
blocks of samples, and drawn resizes; a fifth of each unless in `make long`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.native.conftest import SANITIZE
from tests.native.fuzz.make_corpus import CORPUS, RECTANGLES, seeds
from tests.native.make_jpeg import LAYOUTS
from tests.support.drawn import FULL

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "sophon_loader" / "native"
FUZZ = Path(__file__).parent / "fuzz"
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", *SANITIZE]
BUILT = ROOT / "build" / "sanitized"
MUTATIONS, RESAMPLE_CASES, PIXELS_CASES = (400, 4000, 20000) if FULL else (80, 800, 4000)


def made(name: str, command: list[str | Path]) -> Path:
    """A file that a command writes where `-o` points, or the one that the same command wrote from the same sources."""
    version = subprocess.run([command[0], "--version"], capture_output=True, check=True).stdout
    seen = hashlib.sha256(repr((version, list(map(str, command)))).encode())
    for path in sorted([*NATIVE.glob("*.[ch]"), *FUZZ.glob("*.[ch]")]):
        seen.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    place = BUILT / f"{name}-{seen.hexdigest()[:16]}"
    if not place.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            subprocess.run([*command, "-o", f"{folder}/made"], check=True, timeout=120)
            os.replace(f"{folder}/made", place)  # whole at once, as several processes may make it
    return place


def program(compiler: str, target: str, *flags: str) -> Path:
    """A target with all our C that knows no Python, under the sanitizers; the C is compiled once for all targets."""
    sources = sorted(path for path in NATIVE.glob("*.c") if not path.name.endswith("module.c"))
    ours = made("ours", [compiler, *FLAGS, "-r", "-nostdlib", *sources])
    return made(target, [compiler, *FLAGS, *flags, FUZZ / target, ours, "-lm"])


@pytest.mark.parametrize("target", ["fuzz_jpegcrop.c", "fuzz_decode.c"])
def test_replay(target: str, compiler: str) -> None:
    corpus = sorted(CORPUS.glob("*.bin"))
    # contexts are static in the target, so a leak at exit would be no finding
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [program(compiler, target, "-DREPLAY", f"-DMUTATIONS={MUTATIONS}"), *corpus]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == f"{len(corpus)} files, {len(corpus) * (MUTATIONS + 1)} inputs"


def test_blocks_and_rows_of_samples_stay_in_their_memory(compiler: str) -> None:
    command: list[str | Path] = [program(compiler, "random_pixels.c"), "1", str(PIXELS_CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() in (f"{PIXELS_CASES} cases", "no vector code")


def test_resizes_and_finishes_stay_in_their_memory(compiler: str) -> None:
    command: list[str | Path] = [program(compiler, "random_resample.c"), "1", str(RESAMPLE_CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == f"{RESAMPLE_CASES} cases"


def test_the_corpus_is_what_its_script_makes_and_small() -> None:
    names = set()
    for number, (name, jpeg) in enumerate(seeds()):
        names.add(f"{name}.bin")
        assert (CORPUS / f"{name}.bin").read_bytes() == RECTANGLES[number % len(RECTANGLES)] + jpeg
    assert {path.name for path in CORPUS.glob("*")} == names
    assert len(names) > len(LAYOUTS)
    assert sum(path.stat().st_size for path in CORPUS.glob("*")) < 100_000
