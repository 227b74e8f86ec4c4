"""Which samples the agents of a fleet lack, where their exports hold different files. No clock.

It is learnt from what they answer: nobody asks for a list. A key of which nothing is known is not asked of an agent
that has lacked others of its folder, and has had none of them. All of this is a hint that says whom to ask first; who
seems to lack a sample is asked for it last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NOTHING: NDArray[np.uint8] = np.zeros(0, np.uint8)
"""Where nothing can be noted."""
MAX_FOLDERS = 1 << 16
"""Of which a worker remembers who has files there."""


def nbytes_for(samples: int) -> int:
    """The length of an agent's bits."""
    return -(-samples // 8) + 1


class Lacking:
    """A worker's view of what its agents lack.

    Args:
        bits: per agent, a bit for each sample, set where it lacks that, and a byte that is not 0 where any is set;
            shared with other workers (two that set bits of one byte at once may lose one, which costs a question).
            `NOTHING` to note no bits.

    Attributes:
        found: whether an agent has been seen to lack a sample.

    Example:
        >>> lacking = Lacking([np.zeros(nbytes_for(16), np.uint8) for _ in range(2)])
        >>> lacking.note(1, sample=9, key="cat/9.jpg")
        >>> lacking.by([9, 10], ["cat/9.jpg", "cat/10.jpg"], able={0, 1})
        [{1}, {1}]
    """

    def __init__(self, bits: Sequence[NDArray[np.uint8]]) -> None:
        self._bits = bits
        self._had: dict[str, set[int]] = defaultdict(set)
        self._lacked: dict[str, set[int]] = defaultdict(set)
        """By folder, the agents that have had a file of it, and that have lacked one."""
        self.found = any(len(one) and one[-1] for one in bits)

    def note(self, agent: int, sample: int, key: str) -> None:
        """An agent lacks a sample.

        Args:
            agent: its number.
            sample: its number.
            key: of its file, as all processes call it.
        """
        self.found = True
        bits = self._bits[agent]
        if len(bits):
            bits[sample >> 3] |= 1 << (sample & 7)
            bits[-1] = 1
        self._remember(self._lacked, agent, key)

    def note_had(self, agent: int, key: str) -> None:
        """An agent has sent a sample; to be called once one has been lacked.

        Args:
            agent: its number.
            key: of the sample's file.
        """
        self._remember(self._had, agent, key)

    def _remember(self, what: dict[str, set[int]], agent: int, key: str) -> None:
        folder = _folder(key)
        if folder in what or len(what) < MAX_FOLDERS:
            what[folder].add(agent)

    def forget(self) -> None:
        """An agent is back, perhaps with more files: forget what was concluded from folders."""
        self._had.clear()
        self._lacked.clear()

    def lacks(self, agent: int, sample: int) -> bool:
        """Whether an agent is known to lack a sample."""
        bits = self._bits[agent]
        return bool(len(bits) and bits[-1] and bits[sample >> 3] >> (sample & 7) & 1)

    def by(self, samples: Sequence[int], keys: Sequence[str], able: set[int]) -> list[set[int]]:
        """Per sample, the agents that should not be asked for it.

        Args:
            samples: their numbers.
            keys: of their files.
            able: the agents that may be asked; at least one of them is left for each sample.
        """
        numbers = np.asarray(samples, np.int64)
        known: list[set[int]] = [set() for _ in samples]
        for agent in able:
            bits = self._bits[agent]
            if len(bits) and bits[-1]:
                for place in np.flatnonzero(bits[numbers >> 3] >> (numbers & 7) & 1).tolist():
                    known[place].add(agent)
        found = []
        for lacking, key in zip(known, keys, strict=True):
            folder = _folder(key)
            guessed = lacking | (self._lacked.get(folder, _NONE) - self._had.get(folder, _NONE)) & able
            found.append(guessed if guessed < able else lacking if lacking < able else set())
        return found


_NONE: frozenset[int] = frozenset()


def _folder(key: str) -> str:
    return key.rpartition("/")[0]
