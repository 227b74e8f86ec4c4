"""Our C for 64-bit ARM, in an emulator: NEON gives what plain C gives.

Debian has what this needs: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.fuzz.make_corpus import CORPUS
from tests.native.test_fuzz_replay import NATIVE

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", "-static"]

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)), reason=f"{COMPILER} or {EMULATOR} is not installed"
)


def said(folder: Path, target: str, *arguments: str | Path, flags: tuple[str, ...] = ()) -> str:
    """What a program for ARM prints, made of a target and of all our C that knows no Python."""
    sources = [Path(__file__).parent / "fuzz" / target]
    sources += sorted(path for path in NATIVE.glob("*.c") if not path.name.endswith("module.c"))
    program = folder / "program"
    subprocess.run([COMPILER, *FLAGS, *flags, *sources, "-lm", "-o", program], check=True, timeout=120)
    done = subprocess.run([EMULATOR, program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def test_blocks_and_rows_of_samples(tmp_path: Path) -> None:
    assert said(tmp_path, "random_pixels.c", "1", "20000") == "20000 cases"


def test_resizes(tmp_path: Path) -> None:
    assert said(tmp_path, "random_resample.c", "1", "2000") == "2000 cases"


def test_whole_files(tmp_path: Path) -> None:
    corpus = sorted(CORPUS.glob("*.bin"))
    found = said(tmp_path, "fuzz_decode.c", *corpus, flags=("-DREPLAY",))
    assert found == f"{len(corpus)} files, {len(corpus) * 401} inputs"
