"""`file`: the file's bytes, stage 0."""

from __future__ import annotations

from typing import Any

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload
from sophon_loader.encodings.estimate import Exact, UsedAt


class FileEncoding(Encoding):
    """The bytes of the file as they are."""

    name = "file"
    used_at = UsedAt.FILE
    estimate = Exact()

    def accepts(self, value: Any) -> bool:
        return type(value) is bytes

    def encode(self, value: Any) -> Encoded:
        return Encoded(self.name, {}, value)

    def decode(self, meta: dict[str, Any], payload: Payload) -> bytes:
        return bytes(payload)
