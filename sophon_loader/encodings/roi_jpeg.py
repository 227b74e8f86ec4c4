"""`roi-jpeg`: the part of a JPEG file that the pipeline will read, cut in its bitstream."""

from __future__ import annotations

import reprlib
from typing import Any

from sophon_loader import native
from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size
from sophon_loader.encodings.estimate import Fitted, UsedAt
from sophon_loader.errors import EncodingError
from sophon_loader.kinds.image.part import PartOfFile, Region, Window


class RoiJpegEncoding(Encoding):
    """Meta: `size` [width, height] of the whole and `part` [left, top, width, height], in px."""

    name = "roi-jpeg"
    used_at = UsedAt.FIRST_REGION
    estimate = Fitted(("part_nbytes", "one"), encode_per="file_nbytes")

    def accepts(self, value: Any) -> bool:
        return isinstance(value, PartOfFile)

    def encode(self, value: PartOfFile) -> Encoded:
        kept = value.window.kept
        meta = {
            "size": [value.window.full_width, value.window.full_height],
            "part": [kept.left, kept.top, kept.width, kept.height],
        }
        return Encoded(self.name, meta, value.data)

    def decode(self, meta: dict[str, Any], payload: Payload) -> PartOfFile:
        width, height = image_size(meta)
        part = meta.get("part")
        if not (isinstance(part, (list, tuple)) and len(part) == 4 and all(type(n) is int for n in part)):
            raise EncodingError(f"{self.name} part must be [left, top, width, height], got {reprlib.repr(part)}")
        kept = Region(*part)
        whole = Region(0, 0, width, height)
        if min(kept.width, kept.height) < 1 or not whole.contains(kept):
            raise EncodingError(f"{self.name} part must lie in {width} x {height} px, got {reprlib.repr(part)}")
        if native.image_size(payload) != (kept.width, kept.height):
            raise EncodingError(f"{self.name} payload must be a JPEG of {kept.width} x {kept.height} px")
        return PartOfFile(bytes(payload), Window(kept, width, height))
