"""Whether the agent has the files that this host has, and computes what this host would."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Reply, Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.encodings.encoding import Payload
from sophon_loader.encodings.registry import decode
from sophon_loader.errors import SampleDiffers, SophonError, must_leave
from sophon_loader.host.regular import ROUNDS, lasting_sizes, seen
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.measures.counters import Row
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.described import at_stage, run_from_part
from sophon_loader.pipeline.randomness import Draw, op_seed
from sophon_loader.wire.messages import Sample
from sophon_loader.workers.alike import difference, kind_of
from sophon_loader.workers.fallback import FallbackFiles
from sophon_loader.workers.this_worker import worker_count

SIZES_SHARE = 0.01
"""Of a worker's time that goes into asking for the sizes of files. Where they lie on this host they are all asked for;
a network file system may take as long for that as for a sample."""
FIRST_FILES, FIRST_NBYTES = 16, 8 << 20
"""Of the samples that a run's first epoch brings from the agent, so many are verified besides the share, over all
workers, and no more than so many bytes of files are read for that: copies that differ are so noticed at once."""
_LOOKS = 9
"""The median of so many decides what a look takes: on a busy host one may take a thousand times as long as most."""
_POSITION = 1 << 32
"""Stands for an op that no pipeline has, so that which samples are verified has a random number of its own."""


class SizeCheck:
    """Compares the sizes of files at the two ends, as often as that takes next to no time.

    Args:
        locations: of the dataset's files.
        instead: asks the agent once more.

    Example:
        >>> sizes.compare(reply, "tcp://fileserver:5555/photos")
    """

    def __init__(self, locations: Locations, instead: FallbackFiles) -> None:
        self._locations = locations
        self._instead = instead
        self._began_s: float | None = None
        self._spent_s = 0.0
        self._took_s: deque[float] = deque(maxlen=_LOOKS)
        self._untold = False
        """Whether the file system says 0 bytes of files that have some."""

    def compare(self, reply: Reply, agent: str) -> None:
        """See that a file has here the size that the agent says; nothing where it is not here.

        Args:
            reply: with a sample.
            agent: as error texts call it.

        Raises:
            SampleDiffers: it has another one, and not because it is being replaced.
        """
        wanted, sample = reply.wanted, reply.sample
        assert sample is not None
        since_s = time.perf_counter()
        if self._began_s is None:
            self._began_s = since_s
        if self._untold or self._spent_s > SIZES_SHARE * (since_s - self._began_s):
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
            self._look_again(wanted, path, agent)
            self._untold = nbytes == 0 and _tells_no_size(path)

    def _look_again(self, wanted: Wanted, path: str, agent: str) -> None:
        try:
            found = lasting_sizes(path, lambda: self._instead.size_there(wanted))
        except SophonError:  # the agent has gone: whoever asks for that sample next will say so
            return
        if found is not None:
            raise SampleDiffers(
                f"file of sample {wanted.sample} ({wanted.key!r}) must be the same at both ends, got {found[0]} bytes "
                f"in {path} here and {found[1]} bytes at agent {agent}; bring one of the two files up to date"
            )


def _tells_no_size(path: str) -> bool:
    """Whether `stat` says 0 bytes of a file that has some, as on mounts of object stores."""
    try:
        return os.stat(path).st_size == 0 < seen(path).nbytes
    except OSError:
        return False


@dataclass(frozen=True)
class _File:
    """What a sample is compared with; `holder` is the agent that has it, if it is another one than made the sample."""

    data: bytes
    holder: str = ""


@dataclass(frozen=True)
class _Found:
    """A value that differs: behind how many ops, where, and what is there in either; the agent's answer; the file."""

    stage: int
    where: str
    ours: str
    theirs: str
    sample: Sample
    file: _File


class Verifier:
    """Computes a share of the samples here, too, and compares them bit for bit.

    Which ones depends on the random numbers of the sample, so they are the same ones however many workers there are.
    The first ones of a run come on top, where this host has the files: not a digest that would have to cross the wire,
    but what was sent in any case.

    Args:
        share: of the samples that the agent sends, 0 to 1.
        instead: where their files come from.
        terms: agreed on with the agent; None without one.

    Example:
        >>> verifier = Verifier(0.001, FallbackFiles(locations, terms), terms)
        >>> if verifier.due(draw):
        ...     verifier.verify(reply, chain, draw, row)
    """

    def __init__(self, share: float, instead: FallbackFiles, terms: Terms | None) -> None:
        self._share = share
        self._instead = instead
        self._terms = terms
        self._first: tuple[int, int] | None = None
        """Files and bytes that are left of the first ones, for this worker."""

    def due(self, draw: Draw) -> bool:
        """Whether the sample of this draw is one of those."""
        return self._share > 0 and op_seed(draw, _POSITION) < self._share * 2**64

    def is_first(self, reply: Reply, row: Row) -> bool:
        """Whether the sample is one of the first ones of this run, and its file here.

        Args:
            reply: with it.
            row: says which iteration over the loader this is.
        """
        sample = reply.sample
        if row.iteration != 1 or self._share == 0 or sample is None or not self._instead.has(reply.wanted):
            return False
        if self._first is None:
            workers = worker_count()
            self._first = max(1, FIRST_FILES // workers), FIRST_NBYTES // workers
        files, nbytes = self._first[0] - 1, self._first[1] - sample.file_nbytes
        if files < 0 or nbytes < 0:
            return False
        self._first = files, nbytes
        return True

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
            SampleDiffers: it is another value, and not because its file is being replaced.
        """
        wanted, sample = reply.wanted, reply.sample
        assert sample is not None
        try:
            found = _compared(self._file(wanted), sample, reply.payload, chain, draw)
            if found is not None:
                found = self._again(replace(wanted, cut=sample.cut, encoding=sample.encoding, prices=None), chain, draw)
        except SophonError:  # the agent has gone, or has lost the file: whoever asks for that sample next will say so
            return
        if found is None:
            row.add(verified=1)
            return
        stage, sample = found.stage, found.sample
        ran = " to ".join(dict.fromkeys((chain.ops[0].label, chain.ops[stage - 1].label)))
        what = f"value after ops 0 to {stage - 1} ({ran})" if stage else "file"
        agent, other = self._instead.name(), found.file.holder
        if other:
            ends, ours, cause = "at all agents", f"from the file at agent {other}", "both agents"
            warning = "Train with neither of the two until you know which is right"
        else:
            ends, ours, cause = "at both ends", "here", "both hosts"
            warning = "Do not train with this agent until you know the cause"
        raise SampleDiffers(
            f"{what} of sample {wanted.sample} ({wanted.key!r}) must be the same {ends}, got {found.ours}{found.where} "
            f"{ours} and {found.theirs}{found.where} from agent {agent}, at cut {sample.cut} in encoding "
            f"{sample.encoding!r}; see that {cause} hold the same files and run the same ops. {warning}: earlier "
            "samples may be wrong too"
        )

    def _file(self, wanted: Wanted) -> _File:
        here = self._instead.here(wanted)
        if here is not None:
            return _File(here)
        data, holder = self._instead.elsewhere(wanted)
        return _File(data, holder if holder != self._instead.name() else "")

    def _again(self, wanted: Wanted, chain: Chain, draw: Draw) -> _Found | None:
        """What differs when the agent is asked once more; None for nothing, as the file has been replaced meanwhile."""
        for _ in range(ROUNDS):
            before, file = self._instead.seen(wanted), self._file(wanted)
            sample, payload = self._instead.again(wanted, draw.epoch)
            if self._file(wanted) == file and self._instead.seen(wanted) == before:
                return _compared(file, sample, payload, chain, draw)
        return None


def _compared(file: _File, sample: Sample, payload: Payload, chain: Chain, draw: Draw) -> _Found | None:
    """Where the value that the agent has sent is another one than that of a file; None for nowhere."""
    theirs: Any = decode(sample.encoding, sample.meta, payload)
    stage = sample.cut
    if isinstance(theirs, PartOfFile):
        stage, theirs = run_from_part(chain, theirs, draw)
    elif stage == 0:
        theirs = bytes(theirs)
    else:
        theirs = at_stage(theirs, stage)
    try:
        found = difference(chain.run(file.data, 0, stage, draw), theirs)
    except Exception as error:  # of an op, for which the file at the agent was good enough
        if must_leave(error):
            raise
        found = "", f"{type(error).__name__}: {error}", kind_of(theirs)
    return None if found is None else _Found(stage, *found, sample, file)
