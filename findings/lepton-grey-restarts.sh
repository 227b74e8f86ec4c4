#!/bin/sh
# Lepton gives back another file for a grey JPEG with restart markers whose only component has sampling factors of 2x2.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    lepton_jpeg_python==0.5.8 pillow==13.0.0
"$python" - <<'END'
import io
import sys
from importlib.metadata import version

import lepton_jpeg_python
from PIL import Image


def grey_jpeg(factors, **options):
    """A grey JPEG; with one component, its sampling factors change neither the scan nor the pixels (T.81, A.2.2)."""
    picture = Image.linear_gradient("L").rotate(30).resize((72, 56))
    with io.BytesIO() as out:
        picture.save(out, "JPEG", quality=90, **options)
        data = bytearray(out.getvalue())
    at = data.index(b"\xff\xc0") + 11
    assert data[at] == 0x11, "the one component has factors of 1x1"
    data[at] = factors
    return bytes(data)


def pixels(data):
    with Image.open(io.BytesIO(data)) as picture:
        return picture.tobytes()


def comes_back(data):
    packed = lepton_jpeg_python.compress_bytes(data, {"max_partitions": 1, "threads": "single"})
    return lepton_jpeg_python.decompress_bytes(packed, {"threads": "single"}) == data


files = {
    "1x1": grey_jpeg(0x11),
    "1x1, restart markers": grey_jpeg(0x11, restart_marker_blocks=2),
    "2x2": grey_jpeg(0x22),
    "2x2, restart markers": grey_jpeg(0x22, restart_marker_blocks=2),
}
assert len({pixels(data) for data in files.values()}) == 1, "all four files have the same pixels"
seen = {name: comes_back(data) for name, data in files.items()}
print(f"lepton_jpeg_python {version('lepton_jpeg_python')}, pillow {version('pillow')}")
print("expected: what is decompressed is the file that was compressed, byte for byte, or compressing raises")
print(f"seen: nothing is raised; the file comes back: {seen}")
sys.exit(list(seen.values()) != [True, True, True, False])
END
