#!/bin/sh
# An AVIF that Pillow writes has other pixels on a host of one core: one thread encodes otherwise than several.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: pillow==13.0.0
"$python" - <<'END'
import io
import os
import random
import sys

import PIL
from PIL import Image, features

picture = Image.frombytes("RGB", (30, 20), random.Random(0).randbytes(30 * 20 * 3))
picture = picture.resize((300, 200), Image.Resampling.BICUBIC)


def decoded(**options):
    with io.BytesIO() as out:
        picture.save(out, "AVIF", **options)
        with Image.open(out) as image:
            return image.tobytes()


def differing(one, other):
    return sum(a != b for a, b in zip(one, other))


one, two, four = (decoded(max_threads=threads) for threads in (1, 2, 4))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as in a container with one core
seen = {
    "1 and 2 threads": differing(one, two),
    "2 and 4 threads": differing(two, four),
    "1 thread and the default on one core": differing(one, decoded()),
    "1 and 2 threads, speed=9": differing(*(decoded(max_threads=threads, speed=9) for threads in (1, 2))),
}
print(f"pillow {PIL.__version__}, libavif {features.version('avif')}")
print("expected: the number of threads decides how long an encoder takes, and not which pixels it makes")
print(f"seen: of {len(one)} decoded values, these differ: {seen}")
sys.exit([count > 0 for count in seen.values()] != [True, False, False, False])
END
