"""Decoding, resizing and finishing a picture in C of our own, equal in every bit to Pillow and torchvision or not done.

Each part says by itself whether it can be used: `decodes` and `checked()`.
"""

from __future__ import annotations

from sophon_loader.native.decoding import available as decodes
from sophon_loader.native.decoding import decode
from sophon_loader.native.resampling import checked, finish, resize

__all__ = ["checked", "decode", "decodes", "finish", "resize"]
