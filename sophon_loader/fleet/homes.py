"""Which agent of a fleet is asked for a sample: its key's home, while no more waits there than elsewhere. No clock.

Weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005): the order of the
agents for a key is that of -w / ln(u), with u drawn by a hash of the key and the agent's address. So every process has
the same order, an agent finds the same files again in its memory, and a weight that changes moves few keys. Its load is
bounded (Mirrokni and others, "Consistent hashing with bounded loads", 2018): what is too much for one goes to the next
in the key's own order. It never goes to the shortest queue: all workers would run to the same agent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from xxhash import xxh3_64_intdigest

BOUND = 1.25
"""An agent may have so many times its share of what waits, and one sample more, before others are asked."""

MOST = 16
"""So many agents have a connection to each worker, or more where workers are too few for all: one takes six file
descriptors."""


def connected(agents: int, worker: int, workers: int) -> list[int]:
    """The numbers of the agents that a worker is connected to: all, or a part of a ring, where that of the next worker
    begins. So over all workers each agent has as many connections as another, or one more.

    Args:
        agents: how many there are.
        worker: its number, from 0.
        workers: how many there are.

    Example:
        >>> connected(20, worker=1, workers=3)
        [16, 17, 18, 19, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    """
    count = min(agents, max(MOST, math.ceil(agents / workers)))
    return list(range(agents)) if count == agents else [(worker * count + n) % agents for n in range(count)]


class Homes:
    """Of the keys at some agents.

    Args:
        names: of the agents, each different; the same in every process.

    Attributes:
        weights: of the agents, each at least 0: their shares of the keys.

    Example:
        >>> homes = Homes(["tcp://one:5555/photos", "tcp://other:5555/photos"])
        >>> homes.order("cat/1.jpg")
        [1, 0]
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._seeds = [xxh3_64_intdigest(name.encode(errors="surrogateescape")) for name in names]
        self.weights = [1.0] * len(names)

    def order(self, key: str) -> list[int]:
        """The agents, the key's home first.

        Args:
            key: of a file, as all processes call it, whichever agent each of them met first.
        """
        data = key.encode(errors="surrogateescape")
        scores = [
            -weight / math.log((xxh3_64_intdigest(data, seed=seed) + 0.5) / 2.0**64) if weight else 0.0
            for seed, weight in zip(self._seeds, self.weights, strict=True)
        ]
        return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)

    def deal(
        self,
        keys: Sequence[str],
        waiting: Sequence[int],
        may: Callable[[int], bool],
        avoid: Sequence[AbstractSet[int]] | None = None,
    ) -> list[int]:
        """Whom to ask for each of some samples.

        Args:
            keys: their files'.
            waiting: per agent, samples that it has been asked for.
            may: whether an agent, by its number, may be asked; at least one may.
            avoid: per key, agents that are not asked for it, of which at least one that may be asked is none; None for
                none at all.
        """
        able = [number for number in range(len(waiting)) if may(number)]
        weights = {number: self.weights[number] for number in able}
        if not any(weights.values()):
            weights = dict.fromkeys(able, 1.0)
        mean = (len(keys) + sum(waiting[number] for number in able)) / sum(weights.values())
        room = {number: BOUND * mean * weights[number] + 1 - waiting[number] for number in able}
        dealt = []
        for place, key in enumerate(keys):
            not_these = avoid[place] if avoid is not None else ()
            order = [number for number in self.order(key) if number in weights and number not in not_these]
            number = next((one for one in order if room[one] >= 1), order[0])
            room[number] -= 1
            dealt.append(number)
        return dealt
