#!/bin/sh
# numcodecs' Blosc makes other bytes of the same array at each call, but only when the main thread calls it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$folder/venv"
python=$folder/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    numcodecs==0.16.6 numpy==2.4.6 typing_extensions==4.16.0
"$python" - <<'END'
import sys
import threading
from importlib.metadata import version

import numpy as np
from numcodecs import Blosc, blosc

CALLS = 100
array = np.cumsum(np.random.default_rng(0).integers(-3, 4, 1 << 20)).astype(np.int32)
codec = Blosc(cname="zstd", clevel=1)
blosc.set_nthreads(4)  # its default is one a core, up to 8


def forms(found):
    for _ in range(CALLS):
        found.add(codec.encode(array))


in_main, in_other = set(), set()
forms(in_main)
other = threading.Thread(target=forms, args=(in_other,))
other.start()
other.join()
assert all(np.array_equal(np.frombuffer(codec.decode(one), np.int32), array) for one in in_main | in_other)
print(f"numcodecs {version('numcodecs')}, numpy {np.__version__}")
print("expected: one codec with one set of parameters makes one string of bytes of one array")
print(f"seen: {CALLS} calls make {len(in_main)} forms in the main thread, {len(in_other)} in another thread;")
print("      all of them decode to the array")
sys.exit(not (len(in_main) > 1 and len(in_other) == 1))
END
