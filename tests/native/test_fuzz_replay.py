"""Our C under the address and undefined-behaviour sanitizers: the fuzzer's seeds, each under 400 mutations, drawn
blocks of samples, and drawn resizes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.native.conftest import SANITIZE
from tests.native.fuzz.make_corpus import CORPUS, RECTANGLES, seeds
from tests.native.make_jpeg import LAYOUTS

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "sophon_loader" / "native"
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]
RESAMPLE_CASES = 4000
PIXELS_CASES = 20000


def built(compiler: str, folder: Path, target: str, *flags: str) -> Path:
    """A program made of a target and of all our C that knows no Python, under the sanitizers."""
    sources = [Path(__file__).parent / "fuzz" / target]
    sources += sorted(path for path in NATIVE.glob("*.c") if not path.name.endswith("module.c"))
    program = folder / "program"
    subprocess.run([compiler, *FLAGS, *flags, *SANITIZE, *sources, "-lm", "-o", program], check=True, timeout=120)
    return program


@pytest.mark.parametrize("target", ["fuzz_jpegcrop.c", "fuzz_decode.c"])
def test_replay(target: str, compiler: str, tmp_path: Path) -> None:
    program = built(compiler, tmp_path, target, "-DREPLAY")
    corpus = sorted(CORPUS.glob("*.bin"))
    # contexts are static in the target, so a leak at exit would be no finding
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([program, *corpus], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == f"{len(corpus)} files, {len(corpus) * 401} inputs"


def test_blocks_and_rows_of_samples_stay_in_their_memory(compiler: str, tmp_path: Path) -> None:
    program = built(compiler, tmp_path, "random_pixels.c")
    done = subprocess.run([program, "1", str(PIXELS_CASES)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() in (f"{PIXELS_CASES} cases", "no vector code")


def test_resizes_and_finishes_stay_in_their_memory(compiler: str, tmp_path: Path) -> None:
    program = built(compiler, tmp_path, "random_resample.c")
    done = subprocess.run([program, "1", str(RESAMPLE_CASES)], capture_output=True, text=True, timeout=120)
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
