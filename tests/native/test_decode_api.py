"""The decoder's Python side: threads, arguments, and life without the extension."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sophon_loader.native import decoding
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg
from tests.native.test_decode_layouts import pillow

built = pytest.mark.skipif(not decoding.built, reason="the C extension is not built")


@built
def test_threads_do_not_disturb_each_other() -> None:
    files = [
        make_jpeg(Spec(150 + 9 * i, 120, LAYOUTS[layout], i, optimise=True, density=0.3, restart_interval=i % 3))
        for i, layout in enumerate(("4:2:0", "4:4:4", "grey", "4:4:0"))
    ]
    wanted = [pillow(data) for data in files]

    def decode_often(first: int) -> None:
        for i in range(60):
            which = (first + i) % len(files)
            got = decoding.decode(files[which], (0, 3, 140, 117), plain=True)
            np.testing.assert_array_equal(got, wanted[which][3:117, :140])

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(decode_often, first) for first in range(8)]:
            done.result(60)


@built
def test_pixels_may_be_written_and_are_nobody_elses() -> None:
    data = make_jpeg(Spec(30, 20, LAYOUTS["4:2:0"]))
    first, second = decoding.decode(data, plain=True), decoding.decode(data, plain=True)
    assert first is not None and second is not None
    first += 1
    np.testing.assert_array_equal(second, pillow(data))


@built
def test_a_file_may_follow_any_other() -> None:
    """Tables and buffers of the last file are used again, or are not."""
    files = [make_jpeg(Spec(60, 50, LAYOUTS["4:2:0"], i, optimise=i % 3 > 0, density=0.4)) for i in range(6)]
    wanted = [pillow(data) for data in files]
    for i in np.random.default_rng(0).integers(0, 6, 200):
        whole = i % 2 == 0
        got = decoding.decode(files[i], None if whole else (21, 20, 60, 50), plain=True)
        np.testing.assert_array_equal(got, wanted[i] if whole else wanted[i][20:, 21:])


@built
def test_only_bytes_are_decoded() -> None:
    """A bytearray could change while it is read."""
    with pytest.raises(TypeError):
        decoding.decode(bytearray(make_jpeg(Spec(30, 20, LAYOUTS["4:2:0"]))), plain=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\x89PNG\r\n\x1a\n" + bytes(40)])
def test_no_jpeg_gives_none(data: bytes) -> None:
    assert decoding.decode(data) is None
    assert decoding.decode(data, plain=True) is None


def test_without_the_extension_every_file_gives_none() -> None:
    code = (
        "import sys; sys.modules['sophon_loader.native._decode'] = None\n"
        "from sophon_loader.native import decoding as one\n"
        "print(one.available, one.built, one.decode(b''), one.decode(b'', (0, 0, 1, 1), plain=True))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False False None None"
