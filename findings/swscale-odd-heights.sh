#!/bin/sh
# FFmpeg makes other RGB of the same 4:2:0 pixels in a frame of odd height: there alone it interpolates the chroma.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: av==18.1.0 numpy==2.4.6
"$python" - <<'END'
import sys

import av
import numpy as np


def rgb(height, edge, form="yuv420p"):
    """The upper lines of one picture, in RGB: grey, or two colours that meet at a line of chroma."""
    frame = av.VideoFrame(64, height, form)
    for number, plane in enumerate(frame.planes):
        lines = np.full((plane.height, plane.line_size), 128, np.uint8)
        if number and edge:
            lines[:8], lines[8:] = 90, 160
        plane.update(lines.tobytes())
    return frame.to_ndarray(format="rgb24").astype(int)


def difference(height, edge, form="yuv420p"):
    """Largest difference between the upper 44 lines of such a frame and those of one with 48 lines."""
    return int(np.abs(rgb(height, edge, form)[:44] - rgb(48, edge, form)[:44]).max())


seen = {
    "two lines less": difference(46, edge=True),
    "one line less": difference(47, edge=True),
    "one line less, all grey": difference(47, edge=False),
    "one line less, 4:4:4": difference(47, edge=True, form="yuv444p"),
}
swscale = ".".join(map(str, av.library_versions["libswscale"]))
print(f"av {av.__version__}, libswscale {swscale}, numpy {np.__version__}")
print("expected: the same Y, Cb and Cr become the same RGB in a frame that is one line shorter")
print(f"seen: largest difference of a value, of 255: {seen}")
sys.exit([value > 0 for value in seen.values()] != [False, True, True, False])
END
