"""The JPEG crop: changed files against Pillow, then under libFuzzer with address and undefined-behaviour sanitizers.

    python -m tests.native.fuzz --minutes 5      so long for each; `make fuzz`

The second needs clang. What was found on the way is in `build/fuzz/jpegcrop`, and begins the next run; what fails is
written to `build/fuzz/jpegcrop.failed-*`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.native.fuzz.against_pillow import compare, seeds
from tests.native.fuzz.make_corpus import CORPUS

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "sophon_loader" / "native"
FOUND = ROOT / "build" / "fuzz"
FLAGS = ("-std=c11", "-g", "-O1", f"-I{NATIVE}", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="default %(default)s")
    asked = parser.parse_args()
    clang = shutil.which("clang")
    if clang is None:
        parser.error("clang must be on the PATH, got none; install it (Debian: apt install clang)")
    (FOUND / "jpegcrop").mkdir(parents=True, exist_ok=True)
    rng = random.Random(time.time_ns())
    count, cropped = compare(seeds(), rng, 60 * asked.minutes, FOUND / "jpegcrop.failed-pixels")
    print(f"{count} changed files, {cropped} of them cropped, with Pillow's pixels", flush=True)
    program = FOUND / "fuzz_jpegcrop"
    parts = (one for one in NATIVE.glob("*.c") if not one.name.endswith("module.c"))
    sources = [CORPUS.parent / "fuzz_jpegcrop.c", *parts]
    subprocess.run([clang, *FLAGS, *sources, "-lm", "-o", program], check=True)
    limits = (f"-max_total_time={max(1, round(60 * asked.minutes))}", "-timeout=10", "-max_len=65536")
    output = f"-artifact_prefix={FOUND / 'jpegcrop.failed-'}"
    # Contexts are static in the target, so a leak at exit would be no finding.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    folders = (str(FOUND / "jpegcrop"), str(CORPUS))
    command = [str(program), *limits, output, "-verbosity=0", "-print_final_stats=1", *folders]
    return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
