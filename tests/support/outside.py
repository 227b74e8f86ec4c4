"""A package that adds encodings through an entry point, as an installation would leave it on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sophon_loader.encodings import catalogue, registry

_MODULE = '''
import zlib

from PIL import Image

from sophon_loader.encodings.encoding import Encoded, Encoding, image_size
from sophon_loader.encodings.estimate import Fitted, UsedAt
from sophon_loader.errors import EncodingError


class Packed(Encoding):
    name = "packed"
    used_at = UsedAt.RESIZED
    estimate = Fitted(("one",), decode_per_encode=0.5)

    def accepts(self, value):
        return type(value) is Image.Image and value.mode == "RGB"

    def encode(self, value):
        return Encoded(self.name, {"size": list(value.size)}, zlib.compress(value.tobytes()))

    def decode(self, meta, payload):
        try:
            return Image.frombytes("RGB", image_size(meta), zlib.decompress(payload))
        except (zlib.error, ValueError) as error:
            raise EncodingError(f"packed must be a zlib stream of pixels, got {error}") from error


class Bare:
    """States nothing of itself, and no word of this project's classes but what it must give."""

    name = "bare"

    def accepts(self, value):
        return Packed().accepts(value)

    def encode(self, value):
        return Encoded(self.name, {"size": list(value.size)}, zlib.compress(value.tobytes(), 9))

    def decode(self, meta, payload):
        return Packed().decode(meta, payload)
'''
_ENTRY_POINTS = """[sophon_loader.encodings]
packed = outside_encodings:Packed
bare = outside_encodings:Bare
"""


def install_outside(folder: Path) -> Path:
    """Write the package into a folder, which has to be on the path of every process that shall have it."""
    about = folder / "outside_encodings-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "outside_encodings.py").write_text(_MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-encodings\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(_ENTRY_POINTS)
    return folder


@contextmanager
def outside_installed(folder: Path) -> Iterator[Path]:
    """The package, in this process too, for the duration of a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(install_outside(folder)))
        _forget()
        try:
            yield folder
        finally:
            patch.undo()
            _forget()


def _forget() -> None:
    catalogue.entries.cache_clear()
    registry.encodings.cache_clear()
    registry.fitted.cache_clear()
