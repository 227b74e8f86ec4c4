"""A PIL image's `info` as plain data.

Readers of files put numbers, texts, bytes, tuples and dicts there, and two classes of Pillow's: texts of a PNG's iTXt
chunks, and rational numbers of TIFF tags. JPEG files of cameras hold the latter as well (`dpi`).
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import iTXt
from PIL.TiffImagePlugin import IFDRational

from sophon_loader.encodings.catalogue import INFO_CLASSES
from sophon_loader.errors import EncodingError, PipelineError
from sophon_loader.pipeline.plain import add_reader, check_plain, from_plain, to_plain


class MoreThanPixels(EncodingError):
    """An image holds something apart from its pixels that cannot be sent."""


def info_of(image: Image.Image, allowed: Collection[str] | None = None) -> Any:
    """Return the `info` of an image as plain data; reading it back gives equal values, types and order.

    Args:
        image: any image.
        allowed: names that the loader accepts, `INFO_CLASSES` among them or not; None for all.

    Raises:
        MoreThanPixels: the image holds something that cannot be sent.
    """
    try:
        plain = to_plain(dict(image.info), _WRITERS if allowed is None or INFO_CLASSES in allowed else {})
        check_plain(plain)
    except PipelineError as error:
        remedy = "register the ops with reads_info=False if none looks at it"
        raise MoreThanPixels(f"image info must be plain data to travel: {error}; {remedy}") from error
    return plain


def read_info(plain: Any) -> dict[Any, Any]:
    """Return the `info` that `info_of` made plain.

    Raises:
        EncodingError: `info_of` does not give such data.
    """
    try:
        info = from_plain(plain)
    except PipelineError as error:
        raise EncodingError(f"image info must be readable: {error}") from error
    if type(info) is not dict:
        raise EncodingError(f"image info must be a dict, got {type(info)}")
    return info


def _text_to_plain(value: Any) -> dict[str, Any] | None:
    if type(value) is not iTXt or vars(value).keys() != {"lang", "tkey"}:
        return None
    return {"text": str(value), "lang": to_plain(value.lang, {}), "tkey": to_plain(value.tkey, {})}


def _read_text(fields: dict[str, Any]) -> iTXt:
    text, lang, tkey = fields["text"], fields["lang"], fields["tkey"]
    if type(text) is not str or not all(type(one) in (str, bytes, type(None)) for one in (lang, tkey)):
        raise TypeError("the fields must be texts")
    read: iTXt = iTXt(text, lang, tkey)
    return read


def _rational_to_plain(value: Any) -> dict[str, Any] | None:
    if type(value) is not IFDRational:
        return None
    numerator, denominator = value.numerator, value.denominator
    # Of parts that are no integers, and of what calculation has made, the value need not be the quotient.
    if type(numerator) is not int or type(denominator) is not int:
        return None
    kept = value.__getstate__()[0]
    same = kept != kept if denominator == 0 else type(kept) is Fraction and kept == Fraction(numerator, denominator)
    return {"numerator": numerator, "denominator": denominator} if same else None


def _read_rational(fields: dict[str, Any]) -> IFDRational:
    numerator, denominator = fields["numerator"], fields["denominator"]
    if type(numerator) is not int or type(denominator) is not int:
        raise TypeError("both must be integers")
    return IFDRational(numerator, denominator)


_WRITERS = {"iTXt": _text_to_plain, "rational": _rational_to_plain}
add_reader("iTXt", _read_text)
add_reader("rational", _read_rational)
