"""Whether the agent has the files that this host has, and computes what this host would."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Reply
from sophon_loader.datasets.locations import Locations
from sophon_loader.encodings.registry import decode
from sophon_loader.errors import SampleDiffers, SophonError
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.pushdown import PartOfFile
from sophon_loader.pipeline.randomness import Draw, op_seed
from sophon_loader.workers.alike import difference, kind_of
from sophon_loader.workers.counters import Row
from sophon_loader.workers.files import Instead, agent_name

SIZES_SHARE = 0.01
"""Of a worker's time that goes into asking for the sizes of files. Where they lie on this host they are all asked for;
a network file system may take as long for that as for a sample."""
_LOOKS = 9
"""The median of so many decides what a look takes: on a busy host one may take a thousand times as long as most."""
_POSITION = 1 << 32
"""Stands for an op that no pipeline has, so that which samples are verified has a random number of its own."""


class Sizes:
    """Compares the sizes of files at the two ends, as often as that takes next to no time.

    Args:
        locations: of the dataset's files.

    Example:
        >>> sizes.compare(reply, "tcp://fileserver:5555/photos")
    """

    def __init__(self, locations: Locations) -> None:
        self._locations = locations
        self._began_s: float | None = None
        self._spent_s = 0.0
        self._took_s: deque[float] = deque(maxlen=_LOOKS)

    def compare(self, reply: Reply, agent: str) -> None:
        """See that a file has here the size that the agent says; nothing where it is not here.

        Args:
            reply: with a sample.
            agent: as error texts call it.

        Raises:
            SampleDiffers: it has another one.
        """
        wanted, sample = reply.wanted, reply.sample
        assert sample is not None
        since_s = time.perf_counter()
        if self._began_s is None:
            self._began_s = since_s
        if self._spent_s > SIZES_SHARE * (since_s - self._began_s):
            return
        path = self._locations.path_here(wanted.sample)
        if path is None:
            return
        try:
            nbytes = os.stat(path).st_size
        except OSError:  # mounted in part: the agent has it
            nbytes = sample.file_nbytes
        self._took_s.append(time.perf_counter() - since_s)
        self._spent_s += sorted(self._took_s)[len(self._took_s) // 2]
        if nbytes != sample.file_nbytes:
            raise SampleDiffers(
                f"file of sample {wanted.sample} ({wanted.key!r}) must be the same at both ends, got {nbytes} bytes in "
                f"{path} here and {sample.file_nbytes} bytes at agent {agent}; bring one of the two up to date"
            )


class Verifier:
    """Computes a share of the samples here, too, and compares them bit for bit.

    Which ones depends on the random numbers of the sample, so they are the same ones however many workers there are.

    Args:
        share: of the samples that the agent sends, 0 to 1.
        instead: where their files come from.
        terms: agreed on with the agent; None without one.

    Example:
        >>> verifier = Verifier(0.001, Instead(locations, terms), terms)
        >>> if verifier.due(draw):
        ...     verifier.verify(reply, chain, draw, row)
    """

    def __init__(self, share: float, instead: Instead, terms: Terms | None) -> None:
        self._share = share
        self._instead = instead
        self._terms = terms

    def due(self, draw: Draw) -> bool:
        """Whether the sample of this draw is one of those."""
        return self._share > 0 and op_seed(draw, _POSITION) < self._share * 2**64

    def verify(self, reply: Reply, chain: Chain, draw: Draw, row: Row) -> None:
        """Compare what the agent has sent with what its file gives here; nothing where that cannot be had.

        Only ops that the agent has run are run, and what a part of a file is cut for: nothing of which nobody knows
        whether it is the same twice. Seeds the global generators: call it within `isolated()`.

        Args:
            reply: with a sample that can be decoded.
            chain: the pipeline.
            draw: of its random numbers.
            row: counts it.

        Raises:
            SampleDiffers: it is another value.
        """
        wanted, sample = reply.wanted, reply.sample
        assert sample is not None
        try:
            here = self._instead.here(wanted)
            data = self._instead.there(wanted) if here is None else here
        except SophonError:  # the agent has gone, or has lost the file: whoever asks for that sample next will say so
            return
        theirs: Any = decode(sample.encoding, sample.meta, reply.payload)
        stage = sample.cut
        if isinstance(theirs, PartOfFile):
            stage, theirs = 2, chain.run(theirs.data, 0, 2, draw, window=theirs.window)
        elif stage == 0:
            theirs = bytes(theirs)
        try:
            found = difference(chain.run(data, 0, stage, draw), theirs)
        except Exception as error:  # of an op, for which the file at the agent was good enough
            found = "", f"{type(error).__name__}: {error}", kind_of(theirs)
        if found is None:
            row.add(verified=1)
            return
        where, ours, got = found
        ran = " to ".join(dict.fromkeys((chain.ops[0].label, chain.ops[stage - 1].label)))
        what = f"value after ops 0 to {stage - 1} ({ran})" if stage else "file"
        raise SampleDiffers(
            f"{what} of sample {wanted.sample} ({wanted.key!r}) must be the same at both ends, got {ours}{where} here "
            f"and {got}{where} from agent {agent_name(self._terms)}, at cut {sample.cut} in encoding "
            f"{sample.encoding!r}; both ends must hold the same files and run the same ops. Do not train with it "
            "until you know why: what it has sent before may be wrong, too"
        )
