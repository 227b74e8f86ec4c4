"""Limits of a dataset's pipelines: the last stage that the agent reaches, and stages where values may cross."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from sophon_loader import native
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.described import begin_on_size
from sophon_loader.pipeline.randomness import Draw, in_main_thread, threads_beside

_SIZES = (640, 480), (480, 640), (1000, 1000)
"""Width and height of made-up pictures, px."""


@dataclass(frozen=True)
class AllowedCuts:
    """The pipelines of a dataset's sources, and how far the agent gets in them.

    Example:
        >>> AllowedCuts((chain,), reach=(3,)).max_cut
        3

    Args:
        chains: by source.
        reach: by source, the last stage that the agent reaches.
    """

    chains: tuple[Chain, ...]
    reach: tuple[int, ...]

    @property
    def max_cut(self) -> int:
        """The last stage that the agent can reach for some source."""
        return max(self.reach, default=0)

    @property
    def resize_cut(self) -> int | None:
        """The stage after the first crop or resize, if the agent can reach it; else None."""
        cuts = [chain.resize_cut for chain in self.chains if chain.resize_cut is not None]
        return max(cuts) if cuts and max(cuts) <= self.max_cut else None

    @property
    def crops_first(self) -> bool:
        """True if all pipelines read only a part of a picture, as far as a few draws show.

        False outside the main thread, where drawing would disturb others' random numbers. If other threads run, nothing
        is
        drawn: a crop or resize that comes first is enough, and trials show if a part is cut.
        """
        if not in_main_thread():
            return False
        if "_read_parts" not in self.__dict__ and threads_beside():
            return native.available and all(chain.shrinks_until > 1 for chain in self.chains)
        return self._read_parts

    @cached_property
    def _read_parts(self) -> bool:
        return native.available and all(map(_reads_a_part, self.chains))

    def plain_cuts(self, allowed: Collection[str]) -> range:
        """Return the stages from 1 on at which a value may cross as it is: images as `pixels`, tensors as `array`.

        Args:
            allowed: names of the encodings that may be used.
        """
        images = min(self.max_cut, max((chain.image_stages for chain in self.chains), default=0))
        first = 1 if "pixels" in allowed else images + 1
        last = self.max_cut if "array" in allowed else images
        return range(first, last + 1)


def _reads_a_part(chain: Chain) -> bool:
    if chain.shrinks_until == 1:
        return False
    with chain.isolated():
        shares = [begin_on_size(chain, *size, Draw(0, 0, index)).share for index, size in enumerate(_SIZES)]
    return min(shares) < 1
