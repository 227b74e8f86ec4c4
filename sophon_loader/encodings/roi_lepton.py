"""`roi-lepton`: the JPEG part that `roi-jpeg` sends, in fewer bytes by `lepton`."""

from __future__ import annotations

import zlib
from typing import Any

from sophon_loader.encodings.encoding import Encoded, Payload
from sophon_loader.encodings.estimate import Fitted, UsedAt
from sophon_loader.encodings.lepton import compressed, fits, restored
from sophon_loader.encodings.roi_jpeg import RoiJpegEncoding
from sophon_loader.kinds.image.part import PartOfFile

_DECODE_PER_ENCODE = 1.0
"""CPU seconds to decode per second of cutting and encoding: 0.10 ms per KB of 0.01 and 0.09."""


class RoiLeptonEncoding(RoiJpegEncoding):
    """Meta: that of `roi-jpeg`, and `crc`, the CRC-32 of the smaller JPEG file.

    The agent does not check that this file comes back as it was, which would take half of its time. Our own code writes
    these files, in one way only. All of 14 800 came back, two thirds of them cut out of damaged or odd ones; the
    checksum covers later ones.
    """

    name = "roi-lepton"
    used_at = UsedAt.FIRST_REGION
    # Cutting is the smallest part of the time, so it goes by the size of the part.
    estimate = Fitted(("part_nbytes", "one"), encode_per="part_nbytes", decode_per_encode=_DECODE_PER_ENCODE)

    def accepts(self, value: Any) -> bool:
        return super().accepts(value) and fits(value.data)

    def encode(self, value: PartOfFile) -> Encoded:
        meta = {**super().encode(value).meta, "crc": zlib.crc32(value.data)}
        return Encoded(self.name, meta, compressed(value.data))

    def decode(self, meta: dict[str, Any], payload: Payload) -> PartOfFile:
        return super().decode(meta, restored(meta, payload))
