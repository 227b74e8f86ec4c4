"""`jpegls`: an RGB image as lossless JPEG-LS, by CharLS in imagecodecs (the extra `[codecs]`)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from PIL import Image, ImageChops

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size
from sophon_loader.encodings.estimate import UsedAt, compressed_image
from sophon_loader.encodings.rgb import MAX_RGB_PIXELS, decoded_rgb, is_rgb
from sophon_loader.errors import EncodingError

_DECODE_PER_ENCODE = 0.8
"""CPU seconds to decode per second of encoding; 0.83 and 0.79 for the images of docs/results.md."""
_FRAME = struct.Struct(">2s2sHBHHB9s")
"""SOI, SOF 55 and its length, bits of a component, height, width, number of components, what they are (ITU-T T.87)."""
_COMPONENTS = bytes.fromhex("011100 021100 031100")
"""Each component in full size, without subsampling."""
_SCAN = bytes.fromhex("ffda 000c 03 0100 0200 0300 00 02 00")
"""SOS: all three components px by px, nothing lost."""
_END = b"\xff\xd9"
"""EOI. It is put after any payload: CharLS 2.4.3 counts zeros at the end of its input for seconds, unless they follow a
marker."""
_MAX_SIDE_PX = 65535
"""Maximum width and height in a frame header."""
_MIDDLE = 128


class JpeglsEncoding(Encoding):
    """Meta: `size` [width, height]. The image that is written has red and blue as differences to green.

    Between `htj2k` and `jxl`. For crops of 224 px it has 8 % (imagenet) and 13 % (photos) fewer bytes than `htj2k`, for
    1.8 times the CPU. It has 6 % and 4 % more bytes than `jxl`, for two fifths of the CPU. The headers are left out on
    the wire: they follow from the size, and so an agent cannot send others.
    """

    name = "jpegls"
    used_at = UsedAt.RESIZED
    estimate = compressed_image(_DECODE_PER_ENCODE)

    def accepts(self, value: Any) -> bool:
        return is_rgb(value) and max(value.size) <= _MAX_SIDE_PX

    def encode(self, value: Image.Image) -> Encoded:
        import imagecodecs

        red, green, blue = value.split()
        middle = _middle(green)
        bands = (ImageChops.subtract_modulo(red, middle), green, ImageChops.subtract_modulo(blue, middle))
        pixels = np.asarray(Image.merge("RGB", bands))
        room = pixels.nbytes * 3 // 2 + 1024  # by itself imagecodecs 2026.3 makes less than noise takes
        try:
            data = imagecodecs.jpegls_encode(pixels, out=room)
        except imagecodecs.JpeglsError as error:
            raise EncodingError(f"jpegls must fit into {room} bytes: {error}") from error
        _, scan, payload = data.partition(_SCAN)
        if not scan:
            raise EncodingError("jpegls must be written px by px, got other headers from this release of imagecodecs")
        return Encoded(self.name, {"size": list(value.size)}, payload)

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        import imagecodecs

        width, height = image_size(meta)
        if not (0 < width <= _MAX_SIDE_PX and 0 < height <= _MAX_SIDE_PX and width * height <= MAX_RGB_PIXELS):
            raise EncodingError(
                f"jpegls must be of 1 to {_MAX_SIDE_PX} px a side and not too large, got {meta['size']}"
            )
        headers = _FRAME.pack(b"\xff\xd8", b"\xff\xf7", 17, 8, height, width, 3, _COMPONENTS) + _SCAN

        def decoded(scan: bytes) -> Any:
            return imagecodecs.jpegls_decode(headers + scan + _END)

        image = decoded_rgb(self.name, decoded, payload, (width, height))
        red, green, blue = image.split()
        middle = _middle(green)
        return Image.merge("RGB", (ImageChops.add_modulo(red, middle), green, ImageChops.add_modulo(blue, middle)))


def _middle(green: Image.Image) -> Image.Image:
    """Return the green plus 128, which red and blue are subtracted from, so that a difference of 0 is 128."""
    return ImageChops.add_modulo(green, Image.new("L", green.size, _MIDDLE))
