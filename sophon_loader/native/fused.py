"""Decoding, resizing and finishing a picture in C of our own, equal in every bit to Pillow and torchvision or not done.

`checked()` says which parts are used, of all of them. What is not answers None or False, and Pillow must do it.
"""

from __future__ import annotations

from sophon_loader.native import decoding, resampling
from sophon_loader.native.decoding import DECODE, decode
from sophon_loader.native.decoding import available as decodes
from sophon_loader.native.resampling import FINISH, finish, resize

__all__ = ["DECODE", "FINISH", "checked", "decode", "decodes", "finish", "resize"]


def checked() -> frozenset[int | str]:
    """What gives the installed Pillow's results on pictures made for the purpose: `DECODE`, filters of `resize` by
    Pillow's numbers, and `FINISH`. Each process compares once; what differs is told in its log."""
    return decoding.checked() | resampling.checked()
