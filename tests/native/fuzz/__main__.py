"""The JPEG crop and the decoder: changed files against Pillow, then under libFuzzer with the address and the
undefined-behaviour sanitizers.

    python -m tests.native.fuzz --minutes 5              so long for each of the four; `make fuzz`
    python -m tests.native.fuzz --only decode

The second needs clang. What was found on the way is in `build/fuzz/jpegcrop` and `build/fuzz/decode`, and begins the
next run; what fails is written to `build/fuzz/jpegcrop.failed-*` or `build/fuzz/decode.failed-*`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.native.fuzz.against_pillow import compare, is_cropped_alike
from tests.native.fuzz.decoding_against_pillow import is_decoded_alike
from tests.native.fuzz.make_corpus import CORPUS

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "sophon_loader" / "native"
FOUND = ROOT / "build" / "fuzz"
FLAGS = ("-std=c11", "-g", "-O1", f"-I{NATIVE}", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")


TARGETS: dict[str, Callable[[bytes, random.Random], bool]] = {
    "jpegcrop": is_cropped_alike,
    "decode": is_decoded_alike,
}


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="default %(default)s")
    parser.add_argument("--only", choices=TARGETS, help="one of them; default both")
    asked = parser.parse_args()
    clang = shutil.which("clang")
    if clang is None:
        parser.error("clang must be on the PATH, got none; install it (Debian: apt install clang)")
    FOUND.mkdir(parents=True, exist_ok=True)
    for name in [asked.only] if asked.only else TARGETS:
        rng = random.Random(time.time_ns())
        count, used = compare(TARGETS[name], rng, FOUND / f"{name}.failed-pixels", 60 * asked.minutes)
        print(f"{name}: {count} changed files, {used} of them taken, with Pillow's pixels", flush=True)
        if status := fuzz(clang, name, 60 * asked.minutes):
            return status
    return 0


def fuzz(clang: str, name: str, seconds: float) -> int:
    """Run a target under libFuzzer; returns its exit status."""
    (FOUND / name).mkdir(exist_ok=True)
    program = FOUND / f"fuzz_{name}"
    parts = (one for one in NATIVE.glob("*.c") if not one.name.endswith("module.c"))
    sources = [CORPUS.parent / f"fuzz_{name}.c", *parts]
    subprocess.run([clang, *FLAGS, *sources, "-lm", "-o", program], check=True)
    limits = (f"-max_total_time={max(1, round(seconds))}", "-timeout=10", "-max_len=65536")
    output = f"-artifact_prefix={FOUND / name}.failed-"
    # Contexts are static in the target, so a leak at exit would be no finding.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    folders = (str(FOUND / name), str(CORPUS))
    command = [str(program), *limits, output, "-verbosity=0", "-print_final_stats=1", *folders]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
