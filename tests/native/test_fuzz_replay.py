"""Replay the fuzzer's seeds, each under 400 mutations, with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.fuzz.make_corpus import CORPUS, RECTANGLES, seeds
from tests.native.make_jpeg import LAYOUTS

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "sophon_loader" / "native"
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-DREPLAY", f"-I{NATIVE}"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler whose programs run under both sanitizers, or a skip."""
    path = shutil.which("gcc") or shutil.which("clang")
    if path is None:
        pytest.skip("neither gcc nor clang is installed")
    folder = tmp_path_factory.mktemp("probe")
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    command = [path, *SANITIZE, "probe.c", "-o", "probe"]
    if subprocess.run(command, cwd=folder, capture_output=True).returncode:
        pytest.skip(f"{path} lacks the address or undefined-behaviour sanitizer")
    if subprocess.run([folder / "probe"], capture_output=True).returncode:
        pytest.skip("programs built with the sanitizers do not run here")
    return path


def test_replay(compiler: str, tmp_path: Path) -> None:
    program = tmp_path / "replay"
    sources = [Path(__file__).parent / "fuzz" / "fuzz_jpegcrop.c"]
    sources += sorted(path for path in NATIVE.glob("*.c") if not path.name.endswith("module.c"))
    subprocess.run([compiler, *FLAGS, *SANITIZE, *sources, "-o", program], check=True, timeout=120)
    corpus = sorted(CORPUS.glob("*.bin"))
    # contexts are static in the target, so a leak at exit would be no finding
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([program, *corpus], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == f"{len(corpus)} files, {len(corpus) * 401} inputs"


def test_the_corpus_is_what_its_script_makes_and_small() -> None:
    names = set()
    for number, (name, jpeg) in enumerate(seeds()):
        names.add(f"{name}.bin")
        assert (CORPUS / f"{name}.bin").read_bytes() == RECTANGLES[number % len(RECTANGLES)] + jpeg
    assert {path.name for path in CORPUS.glob("*")} == names
    assert len(names) > len(LAYOUTS)
    assert sum(path.stat().st_size for path in CORPUS.glob("*")) < 100_000
