#!/bin/sh
# Pillow 13 resizes the same box to other pixels where the picture goes on below the box, out of the filter's reach.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
pip="$python -m pip install --quiet --disable-pip-version-check --only-binary :all:"
cat > "$folder/count.py" <<'END'
"""Pixels that change when black rows are added 40 rows below the box; bicubic reaches 4 rows at this scale."""

import random
import sys

import PIL
from PIL import Image

pixels = random.Random(0).randbytes(300 * 280)
picture = Image.frombytes("L", (300, 280), pixels)
longer = Image.new("L", (300, 1000))
longer.paste(picture, (0, 0))
box = (40, 40, 260, 240)
short, long = (one.resize((110, 100), Image.Resampling.BICUBIC, box=box).tobytes() for one in (picture, longer))
differences = [abs(a - b) for a, b in zip(short, long)]
differing = sum(map(bool, differences))
print(f"pillow {PIL.__version__}: {differing} of {len(short)} pixels differ, by {max(differences)} of 255 at most")
sys.exit((differing > 0) != (sys.argv[1] == "differ"))
END
echo "expected: a resize with box= depends on the pixels of the box and those within the filter's reach"
echo "seen:"
$pip pillow==12.1.1
"$python" "$folder/count.py" same
$pip pillow==13.0.0
"$python" "$folder/count.py" differ
