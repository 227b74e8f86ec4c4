#!/bin/sh
# imagecodecs cannot write noise as lossless JPEG-LS: the buffer that it makes by itself is too small.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: imagecodecs==2026.3.6 numpy==2.4.6
"$python" - <<'END'
import sys
from importlib.metadata import version

import imagecodecs
import numpy as np


def outcome(pixels, **room):
    try:
        data = imagecodecs.jpegls_encode(pixels, **room)
    except imagecodecs.JpeglsError as error:
        return "too small" if "buffer is too small" in str(error) else str(error)
    assert np.array_equal(imagecodecs.jpegls_decode(data), pixels)
    return "lossless, smaller" if len(data) < pixels.nbytes else "lossless, larger"


noise = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
smooth = np.repeat(np.repeat(noise[:64, :64], 8, axis=0), 8, axis=1)
seen = {
    "smooth": outcome(smooth),
    "noise, 32 px a side": outcome(noise[:32, :32].copy()),
    "noise, 512 px a side": outcome(noise),
    "the same noise, out=1.5 times its bytes": outcome(noise, out=noise.nbytes * 3 // 2),
}
print(f"imagecodecs {version('imagecodecs')}, {imagecodecs.jpegls_version()}, numpy {np.__version__}")
print("expected: a lossless encoder takes every picture; one that does not shrink gets larger")
print(f"seen: {seen}")
wanted = ["lossless, smaller", "lossless, larger", "too small", "lossless, larger"]
sys.exit(list(seen.values()) != wanted)
END
