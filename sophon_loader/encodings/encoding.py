"""The contract of an encoding. A name stands for one byte format for ever; a new format is a new name."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sophon_loader.errors import EncodingError

if TYPE_CHECKING:  # it needs numpy, which the agent's broker does without
    from sophon_loader.encodings.estimate import Exact, Fitted, UsedAt

MAX_PIXELS = 1 << 28
"""Maximum size of an image on the wire, in px (Pillow's own bomb limit is about 1.8e8)."""
MAX_SIDE_PX = 1 << 20
"""Maximum width and height: Pillow keeps a pointer per row, even of an image without columns."""

Payload = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Encoded:
    """A value as it crosses the wire.

    Args:
        encoding: name of the encoding.
        meta: plain data for the header.
        payload: the payload frame.

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
    """Lossless: for every accepted value, `decode(meta, payload)` of its `encode` is equal, bit for bit.

    For example, grey images as they lie in memory, which a policy may name and `auto` never chooses:

        class Grey(Encoding):
            name = "grey"

            def accepts(self, value):
                return type(value) is Image.Image and value.mode == "L"

            def encode(self, value):
                return Encoded(self.name, {"size": list(value.size)}, value.tobytes())

            def decode(self, meta, payload):
                width, height = image_size(meta)
                if len(payload) != width * height:
                    raise EncodingError(f"grey must be {width * height} bytes, got {len(payload)}")
                return Image.frombytes("L", (width, height), payload)

    Attributes:
        name: identifies this byte format for ever.
        used_at: where plans may use it; None: only if a policy names it.
        estimate: method to estimate its size and CPU time; None: unknown, so `auto` never chooses it.
    """

    name: str
    used_at: UsedAt | None = None
    estimate: Exact | Fitted | None = None

    def accepts(self, value: Any) -> bool:
        """Return True if `value` can be encoded."""

    def encode(self, value: Any) -> Encoded:
        """Encode a value that `accepts` took.

        Raises:
            EncodingError: decoding would not give the same value; the agent sends the file instead.
        """

    def decode(self, meta: dict[str, Any], payload: Payload) -> Any:
        """Return the value; never keeps a reference to `payload`.

        Args:
            meta: written by `encode`, as it arrived.
            payload: written by `encode`.

        Raises:
            EncodingError: `encode` does not write such `meta` and `payload`.
        """


def image_size(meta: dict[str, Any]) -> tuple[int, int]:
    """Return (width, height) of an image, in px, from its meta.

    Raises:
        EncodingError: `size` is missing, not two numbers from 0 on, or over a limit.
    """
    size = meta.get("size")
    if not (isinstance(size, (list, tuple)) and len(size) == 2 and all(type(n) is int for n in size)):
        raise EncodingError(f"image size must be [width, height], got {reprlib.repr(size)}")
    width, height = size
    if not size_fits(width, height):
        raise EncodingError(f"image size must be within {MAX_PIXELS} px, got {width} x {height}")
    return width, height


def size_fits(width: int, height: int) -> bool:
    """Return True if an image of this size may cross the wire.

    Args:
        width, height: in px.
    """
    return 0 <= min(width, height) <= max(width, height) <= MAX_SIDE_PX and width * height <= MAX_PIXELS
