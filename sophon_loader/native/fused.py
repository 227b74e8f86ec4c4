"""Decode, resize and finish a picture by our C code, bit-identical to Pillow and torchvision, or not at all.

`checked()` returns the parts that are in use. The functions of other parts return None or False, and the caller uses
Pillow.
"""

from __future__ import annotations

from sophon_loader.native import decoding, resampling
from sophon_loader.native.decoding import DECODE, decode
from sophon_loader.native.decoding import available as decodes
from sophon_loader.native.resampling import FINISH, finish, resize

__all__ = ["DECODE", "FINISH", "checked", "decode", "decodes", "finish", "resize"]


def checked() -> frozenset[int | str]:
    """Parts whose results on test pictures equal the installed Pillow's: `DECODE`, Pillow's numbers of the filters of
    `resize`, and `FINISH`.

    Each process compares once, and logs what differs.
    """
    return decoding.checked() | resampling.checked()
