"""The contract of an encoding. A name stands for one byte format for ever; a new format is a new name."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, Protocol

from sophon_loader.errors import EncodingError

MAX_PIXELS = 1 << 28
"""No image on the wire has more px (Pillow's own bomb limit is about 1.8e8)."""
MAX_SIDE_PX = 1 << 20
"""Neither width nor height is larger: Pillow keeps a pointer per row, even of an image without columns."""

Payload = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Encoded:
    """A value as it crosses the wire: plain `meta` for the header, and the payload frame.

    Raises:
        TypeError: the payload is a view of memory with gaps.
    """

    encoding: str
    meta: dict[str, Any]
    payload: Payload

    def __post_init__(self) -> None:
        if isinstance(self.payload, memoryview):
            object.__setattr__(self, "payload", self.payload.cast("B"))  # so that its length is that in bytes


class Encoding(Protocol):
    """Lossless: for every accepted value, `decode(meta, payload)` of its `encode` is equal, bit for bit."""

    name: str

    def accepts(self, value: Any) -> bool:
        """Whether `value` can be encoded."""

    def encode(self, value: Any) -> Encoded:
        """Write a value that `accepts` took."""

    def decode(self, meta: dict[str, Any], payload: Payload) -> Any:
        """Read a value back; never keeps a reference to `payload`.

        Raises:
            EncodingError: `meta` and `payload` are not what `encode` writes.
        """


def image_size(meta: dict[str, Any]) -> tuple[int, int]:
    """The (width, height) of an image from its meta.

    Raises:
        EncodingError: missing, not two numbers from 0 on, or over a limit.
    """
    size = meta.get("size")
    if not (isinstance(size, (list, tuple)) and len(size) == 2 and all(type(n) is int for n in size)):
        raise EncodingError(f"image size must be [width, height], got {reprlib.repr(size)}")
    width, height = size
    if not size_fits(width, height):
        raise EncodingError(f"image size must be within {MAX_PIXELS} px, got {width} x {height}")
    return width, height


def size_fits(width: int, height: int) -> bool:
    """Whether an image of that size may cross the wire."""
    return 0 <= min(width, height) <= max(width, height) <= MAX_SIDE_PX and width * height <= MAX_PIXELS
