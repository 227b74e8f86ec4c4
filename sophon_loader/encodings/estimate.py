"""Properties that an encoding states for plans: where it may be used, and estimates of its size and CPU time.

Sizes that cannot be calculated are fitted by least squares. The agent encodes a few samples on trial, and their sizes
are fitted to features: properties of a sample that are known before it is encoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = Any
"""float64[n] of n samples, or a float of one; numpy calculates with both alike."""

MIN_PROBES = 8
"""Minimum number of trials for a fit: twice the most coefficients of an encoding of this package."""
MAX_COMPRESSED_GROWTH = 1.2
"""Maximum estimate of a losslessly compressed image's size, as a multiple of its pixels' size. Images of pure noise, of
64 px a side and more, had 1.01 times (webp) and 1.19 times (jxl); a larger estimate is an error of the fit."""
MAX_LOG = 30.0
"""Limit for the logarithm of an estimated size: above that of any real size, and far from an overflow."""


# An agent estimates one sample at a time, for which numpy takes ten times as long as Python itself.


def _most(one: Numbers, other: Numbers) -> Numbers:
    arrays = isinstance(one, np.ndarray) or isinstance(other, np.ndarray)
    return np.maximum(one, other) if arrays else max(one, other)


def _least(one: Numbers, other: Numbers) -> Numbers:
    arrays = isinstance(one, np.ndarray) or isinstance(other, np.ndarray)
    return np.minimum(one, other) if arrays else min(one, other)


def _log(value: Numbers) -> Numbers:
    return np.log(value) if isinstance(value, np.ndarray) else math.log(value)


def _exp(value: Numbers) -> Numbers:
    return np.exp(value) if isinstance(value, np.ndarray) else math.exp(value)


class UsedAt(Enum):
    """Stage at which an encoding may be used."""

    FILE = "the file itself, stage 0"
    FIRST_REGION = "the part of the file that the first crop reads, stage 0"
    RESIZED = "the value right behind the first crop or resize"
    ANY_STAGE = "a value at any stage from 1 on"


@dataclass(frozen=True, eq=False)
class Features:
    """Properties of samples that are known before they are encoded; each public property is a feature, by its name.

    Arguments are arrays for n samples, or numbers for one.

    Args:
        file_nbytes: size of the file, bytes.
        value_nbytes: size of the value to be encoded, bytes as it is.
        px: width times height of the decoded picture; 0 if unknown.
        share: share of the picture that the first crop reads, in [0, 1]; 1 if unknown.
    """

    file_nbytes: Numbers
    value_nbytes: Numbers
    px: Numbers
    share: Numbers

    @property
    def one(self) -> float:
        """Constant feature, equal for all samples."""
        return 1.0

    @property
    def part_nbytes(self) -> Numbers:
        """Bytes of the file, times the share of the picture that is read."""
        return self.file_nbytes * self.share

    @cached_property
    def bits_per_px(self) -> Numbers:
        """Bits of the file per px of the picture: a finely detailed one compresses badly."""
        return 8.0 * self.file_nbytes / _most(self.px, 1.0)

    @cached_property
    def zoom(self) -> Numbers:
        """Logarithm of the number of px that are made into one: an enlarged picture compresses well."""
        made_px = _most(self.value_nbytes / 3.0, 1.0)
        return _log(_most(self.share * self.px, 1.0) / made_px)

    @cached_property
    def bits_per_px_x_zoom(self) -> Numbers:
        """Product of `bits_per_px` and `zoom`."""
        return self.bits_per_px * self.zoom

    def matrix(self, names: Sequence[str]) -> Floats:
        """Return float64[n, k]: the features of these names, a column each."""
        columns = np.empty((np.size(self.share), len(names)))
        for column, name in enumerate(names):
            columns[:, column] = getattr(self, name)
        return columns


FEATURES = ("one", "file_nbytes", "part_nbytes", "bits_per_px", "zoom", "bits_per_px_x_zoom")
_OF_THE_PICTURE = frozenset({"bits_per_px", "zoom", "bits_per_px_x_zoom"})
"""Features that need the size of the picture."""
COMPRESSED_IMAGE = ("one", "bits_per_px", "zoom", "bits_per_px_x_zoom")
"""Features that the logarithm of a losslessly compressed image's size is fitted to."""


@dataclass(frozen=True)
class Fit:
    """Size and CPU time of an encoding at stage `cut`, fitted to trials.

    Args:
        coefficients: by feature.
        scale: factor for an estimate from a logarithm, so that the mean of all is right.
        encode_s: agent CPU seconds to encode a value, or per unit of the feature `Fitted.encode_per`.
    """

    cut: int
    coefficients: dict[str, float]
    scale: float
    encode_s: float


@dataclass(frozen=True)
class Exact:
    """The size is that of the value as it is, and encoding takes equally long for all values.

    A plan names `file` and `pixels` for all that is exact.
    """


@dataclass(frozen=True)
class Fitted:
    """The size is fitted to features of the sample, so `auto` can choose the encoding after enough trials.

    For example, an image format whose files have a constant size per px, and half of it again for its header:

        estimate = Fitted(("one", "zoom"), logarithmic=True, decode_per_encode=0.8)

    Args:
        features: names out of `FEATURES`.
        logarithmic: fit the logarithm of the size in place of the size.
        max_growth: the size is at most this many times that of the value as it is.
        encode_per: feature that encoding time is proportional to; "one" if encoding takes equally long for all
            samples.
        decode_per_encode: CPU seconds of the loader to decode, per CPU second of the agent to encode.

    Raises:
        ValueError: a feature does not exist.
    """

    features: tuple[str, ...]
    logarithmic: bool = False
    max_growth: float = 1.0
    encode_per: str = "one"
    decode_per_encode: float = 0.0

    def __post_init__(self) -> None:
        if not self.features or not {*self.features, self.encode_per} <= set(FEATURES):
            got = (*self.features, self.encode_per)
            raise ValueError(f"features must be names out of {FEATURES}, got {got}")

    @property
    def needs_px(self) -> bool:
        """True if the features need a picture's size."""
        return not _OF_THE_PICTURE.isdisjoint(self.features)

    def nbytes(self, fit: Fit, given: Features) -> Numbers:
        """Return estimated sizes in bytes: float64[n] for n samples, a float for one.

        Args:
            fit: result of trials.
            given: features of the samples.
        """
        terms = sum(getattr(given, name) * fit.coefficients[name] for name in self.features)
        most = self.max_growth * given.value_nbytes
        if self.logarithmic:
            return _least(_exp(_least(terms, MAX_LOG)) * fit.scale, most)
        return _least(_most(terms, 0.0), most)

    def encode_s(self, fit: Fit, given: Features) -> Numbers:
        """Return agent CPU seconds to encode: float64[n], or one number for all samples.

        Args:
            fit: result of trials.
            given: features of the samples.
        """
        return getattr(given, self.encode_per) * fit.encode_s

    def fit(self, cut: int, given: Features, nbytes: Floats, encode_s: Sequence[float]) -> Fit | None:
        """Fit size and CPU time to trials; returns None if they are too few.

        Args:
            cut: the stage that was encoded.
            given: features of the n samples tried.
            nbytes: float64[n], their encoded sizes.
            encode_s: n agent CPU seconds of encoding.
        """
        if len(nbytes) < MIN_PROBES:
            return None
        matrix = given.matrix(self.features)
        coefficients, *_ = np.linalg.lstsq(matrix, np.log(nbytes) if self.logarithmic else nbytes, rcond=None)
        scale = 1.0
        if self.logarithmic:  # the mean of a logarithm is not that of the bytes
            scale = float(nbytes.mean() / np.exp(matrix @ coefficients).mean())
        seconds = sum(encode_s) / float(given.matrix((self.encode_per,)).sum())
        found = {name: float(one) for name, one in zip(self.features, coefficients, strict=True)}
        return Fit(cut, found, scale, seconds)


def compressed_image(decode_per_encode: float) -> Fitted:
    """Return the estimate for a lossless compression of images.

    Args:
        decode_per_encode: see `Fitted`.
    """
    return Fitted(
        COMPRESSED_IMAGE, logarithmic=True, max_growth=MAX_COMPRESSED_GROWTH, decode_per_encode=decode_per_encode
    )
