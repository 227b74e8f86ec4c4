"""What a worker answers with where the choice is left to it: for every sample the cheapest, at the loader's prices.

What ops and encodings take is learnt from trials (`trials.py`), those of all workers, and what an encoding takes from
every sample that goes out in it here besides: the samples for which it is chosen are not like all others. Any choice
gives the loader the same sample, so a wrong estimate costs time and nothing else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sophon_loader.encodings.estimate import MIN_PROBES, Features, Fit, UsedAt
from sophon_loader.encodings.registry import encodings, fitted, used_at
from sophon_loader.kinds.image.part import CUT_SHARE, FIXED_SHARE, WORTH_SHARE
from sophon_loader.wire.messages import Offer
from storage_agent.workers.trials import FileFacts, KnownPicture, SampleTrial

FILE = (0, "file")
"""The choice that every sample has."""
FIRST_JOBS_BETWEEN = 4
"""Jobs since the last trial, of whichever worker, while nothing is known. All encodings are tried then, which takes as
long as some twenty jobs do: one such trial after the other would hold up the first batches, while nothing is on its
way. So it is left alone after each for as long as that took, too."""
MOST_JOBS_BETWEEN = 512
"""Jobs between two trials, once they are only to notice a change. A trial decodes the whole picture and takes about as
long as five jobs, for files like ImageNet's and for photographs, so trials are about a hundredth of the work."""
MOST_LACKING = 2 * MIN_PROBES
"""Trials beyond the rarer ones for an encoding of which too little is known: one that takes nothing, or whose sizes
fit no estimate, does not double the work for ever."""
KEPT_TRIALS = 64
"""The newest ones; twice as many as the most that a fit of four coefficients gains from."""
KEPT_SENT = 64
"""Of the samples that went out in an encoding, the newest ones; no more than trials, which are of all kinds of samples,
so that an encoding stays known where it is not chosen."""
SENT_BETWEEN_FITS = 16
"""At least; later half of those that are kept. A fit takes 0.4 ms between samples, which drive it out of the caches."""


class LoaderPrices(NamedTuple):
    """What a loader pays, in any unit: for a byte on the wire, a CPU second here, one that is left to it.

    `per_worker` is for how many cores of each worker that was worked out; it is no price.
    """

    wire: float
    agent: float
    rest: float
    per_worker: float = 0.0


class _Row(NamedTuple):
    """What an encoding took for a sample: of its value as it is, bytes; encoded, bytes; CPU seconds."""

    file: FileFacts
    value_nbytes: float
    nbytes: int
    encode_s: float


@dataclass
class _Taken:
    """What an encoding took of late."""

    tried: deque[_Row] = field(default_factory=lambda: deque(maxlen=KEPT_TRIALS))
    sent: deque[_Row] = field(default_factory=lambda: deque(maxlen=KEPT_SENT))
    unfitted: int = 0


class Appraiser:
    """Knows what the choices of one pipeline's samples take here.

    Example:
        >>> appraiser = Appraiser(stages=4, reach=3, resized_at=2)
        >>> picture = look_at(data, chain, draw)
        >>> offers = appraiser.offers(picture, ["file", "pixels", "webp"], furthest=3)
        >>> cheapest(offers, LoaderPrices(wire=8e-8, agent=0.5, rest=0.2))
        Offer(cut=2, encoding='webp', nbytes=61233, agent_s=0.0032, rest_s=0.0019)

    Args:
        stages: how many there are behind the file; the first of them is the picture, decoded.
        reach: the last stage that may be reached here.
        resized_at: the stage at which encodings of resized values are used; None for none.
        bands: of the decoded picture.

    Attributes:
        is_warm: whether this process has made a trial before: one's first is slow, as it loads libraries.
    """

    def __init__(self, stages: int, reach: int, resized_at: int | None, bands: int = 3) -> None:
        self.is_warm = False
        self._stages = stages
        self._reach = reach
        self._resized_at = resized_at
        self._bands = float(bands)
        self._trials: deque[SampleTrial] = deque(maxlen=KEPT_TRIALS)
        self._tried, self._jobs = 0, 0
        self._next_s = 0.0
        self._is_behind, self._to_fit = False, set[str]()
        """Whether there are trials that have not been worked out, and the encodings that they tell of."""
        self._decode_s = (0.0, 0.0, 0.0)  # per px, per byte of the file, and for each
        self._op_s: list[float] = []
        self._nbytes: list[float] = []
        self._plain: tuple[str, ...] = ()
        self._taken: dict[str, _Taken] = {}
        self._fits: dict[str, Fit] = {}
        self._lacking_tried: Counter[str] = Counter()

    @property
    def knows(self) -> bool:
        """Whether enough has been tried to choose by prices."""
        return len(self._trials) >= MIN_PROBES

    def lacks(self, picture: KnownPicture, allowed: Collection[str], *, cuts: bool) -> list[str]:
        """The encodings of which too little is known, and of which a trial of this sample could tell more: where few
        files of a folder can be cut, or only few cannot, those few must be the ones that are tried.

        Args:
            picture: what has been told of the sample's file.
            allowed: that the loader accepts.
            cuts: as for `tried`.
        """
        wanted = {UsedAt.FIRST_REGION if cuts and picture.can_be_cut else UsedAt.FILE}
        if self._resized_at is not None:
            wanted.add(UsedAt.RESIZED)
        return [
            name
            for name in self._unknown(allowed)
            if self._lacking_tried[name] < MOST_LACKING
            and used_at(name) in wanted
            and (used_at(name) is not UsedAt.FILE or name in picture.taken_by)
        ]

    def due(self, now_s: float, lacking: Collection[str] = ()) -> bool:
        """A job is done: whether its sample should be tried; often at first and where something is lacking, then ever
        more rarely.

        Args:
            now_s: of a steady clock.
            lacking: what `lacks` gave for the sample.
        """
        self._jobs += 1
        gap = FIRST_JOBS_BETWEEN
        if not lacking:
            gap = min(gap << max(0, self._tried - MIN_PROBES), MOST_JOBS_BETWEEN)
        return self._jobs >= gap and now_s >= self._next_s

    def names(self, allowed: Collection[str]) -> list[str]:
        """The encodings to try next: those of which too little is known, all of them at first, and of others one after
        the other. Of eight files one may be such that it is not cut; then seven have shown what cutting takes.

        Args:
            allowed: that the loader accepts.
        """
        unknown = self._unknown(allowed)
        known = [name for name in self._fits if name in allowed]
        turn = [known[self._tried % len(known)]] if known else []
        return unknown + turn

    def _unknown(self, allowed: Collection[str]) -> list[str]:
        """Encodings of which too little has been tried."""
        self._take_in()
        return [name for name in fitted() if name in allowed and name not in self._fits]

    def took(self, began_s: float, ended_s: float) -> None:
        """A trial has ended here, whatever came of it, and jobs have their turn."""
        self.is_warm = True
        self._next_s = ended_s + (ended_s - began_s)

    def failed(self, lacking: Collection[str] = ()) -> None:
        """A trial did not come to its end: its sample cannot be run, which the loader will see.

        Args:
            lacking: what it was to tell of.
        """
        self._tried += 1
        self._jobs = 0
        self._lacking_tried.update(lacking)

    def learn(self, trial: SampleTrial) -> None:
        """A trial has been made, here or by another worker."""
        self._trials.append(trial)
        # Until enough is known, trials that failed before make the next ones no rarer.
        self._tried = self._tried + 1 if len(self._trials) > MIN_PROBES else len(self._trials)
        self._jobs = 0
        self._lacking_tried.update(trial.lacking)
        for name, encoded in trial.encoded.items():
            self._taken.setdefault(name, _Taken()).tried.append(_Row(trial.file, *encoded))
        self._to_fit.update(trial.encoded)
        self._is_behind = True

    def _take_in(self) -> None:
        """Work out what the trials say, if there are new ones."""
        if not self._is_behind:
            return
        self._is_behind = False
        trials = list(self._trials)
        ops = range(1, self._stages)
        self._op_s = [0.0, *(float(np.median([one.op_s[op] for one in trials])) for op in ops)]
        self._nbytes = [float(np.mean([one.nbytes[op] for one in trials])) for op in range(self._stages)]
        self._plain = trials[-1].plain
        self._decode_s = _decoding(trials)
        while self._to_fit:
            name = self._to_fit.pop()
            self._fit(name, self._taken[name])

    def saw(self, picture: KnownPicture, cut: int, name: str, nbytes: int, encode_s: float) -> None:
        """A sample has gone out; what an encoding took for it is learnt, if that is one whose size is estimated.

        Args:
            picture: what was told of its file.
            cut, name: the choice that was taken.
            nbytes: sent.
            encode_s: CPU seconds of encoding.
        """
        if not self.knows or name not in fitted() or cut != self._cut_of(name):
            return
        self._take_in()
        value_nbytes = self._nbytes[cut - 1] if cut else picture.nbytes
        known = self._taken.setdefault(name, _Taken())
        known.sent.append(_Row(picture.facts, value_nbytes, nbytes, encode_s))
        known.unfitted += 1
        if known.unfitted >= max(SENT_BETWEEN_FITS, len(known.sent) // 2):
            self._fit(name, known)

    def _cut_of(self, name: str) -> int:
        """The stage at which an encoding is used."""
        return self._resized_at or 0 if used_at(name) is UsedAt.RESIZED else 0

    def _fit(self, name: str, known: _Taken) -> None:
        known.unfitted = 0
        estimate = fitted()[name]
        rows = [one for one in (*known.tried, *known.sent) if one.file.px or not estimate.needs_px]
        if len(rows) < MIN_PROBES:
            return
        given = Features(
            np.array([float(one.file.nbytes) for one in rows]),
            np.array([float(one.value_nbytes) for one in rows]),
            np.array([float(one.file.px) for one in rows]),
            np.array([one.file.share for one in rows]),
        )
        nbytes = np.array([float(one.nbytes) for one in rows])
        per = given.matrix((estimate.encode_per,))[:, 0]
        encode_s = _without_outliers([one.encode_s for one in rows], per)
        if fit := estimate.fit(self._cut_of(name), given, nbytes, encode_s):
            self._fits[name] = fit

    def offers(self, picture: KnownPicture, allowed: Collection[str], *, furthest: int) -> list[Offer]:
        """Every choice of a sample, the file first; nothing before enough has been tried.

        Args:
            picture: what has been told of its file.
            allowed: encodings that the loader accepts.
            furthest: the last stage that the loader accepts.
        """
        if not self.knows:
            return []
        self._take_in()
        reach, share = min(furthest, self._reach), picture.share
        per_px, per_byte, each = self._decode_s
        whole_s = per_px * picture.px + per_byte * picture.nbytes + each
        cut_s = whole_s
        if picture.can_be_cut and share < WORTH_SHARE:
            cut_s = whole_s * min(share + FIXED_SHARE + CUT_SHARE, 1.0)  # the bitstream is cut first
        after_s = sum(self._op_s)
        found = [Offer(*FILE, picture.nbytes, 0.0, cut_s + after_s)]
        for name, fit in self._fits.items():
            if fit.cut == 0 and name in allowed:
                found += self._of_file(name, fit, picture, whole_s, cut_s, after_s)
        spent_s, left_s = whole_s, after_s
        for cut in range(1, reach + 1):
            if cut > 1:
                spent_s = cut_s + after_s - left_s + self._op_s[cut - 1]
                left_s -= self._op_s[cut - 1]
            rest_s = max(left_s, 0.0)
            nbytes = self._bands * picture.px if cut == 1 and picture.px else self._nbytes[cut - 1]
            if self._plain[cut - 1] in allowed:
                found.append(Offer(cut, self._plain[cut - 1], round(nbytes), spent_s, rest_s))
            given = picture.facts.features(nbytes)
            for name, fit in self._fits.items():
                if fit.cut == cut and name in allowed:
                    estimate = fitted()[name]
                    if picture.px or not estimate.needs_px:
                        encode_s = float(estimate.encode_s(fit, given))
                        decode_s = encode_s * estimate.decode_per_encode
                        size = round(float(estimate.nbytes(fit, given)))
                        found.append(Offer(cut, name, size, spent_s + encode_s, rest_s + decode_s))
        return found

    def _of_file(
        self, name: str, fit: Fit, picture: KnownPicture, whole_s: float, cut_s: float, after_s: float
    ) -> list[Offer]:
        """An encoding of the file, or of the part of it that will be read."""
        estimate, given = fitted()[name], picture.facts.features(picture.nbytes)
        encode_s = float(estimate.encode_s(fit, given))
        decode_s = encode_s * estimate.decode_per_encode
        if used_at(name) is UsedAt.FIRST_REGION:
            if not picture.can_be_cut:
                return []
            decode_s += whole_s * min(picture.share + FIXED_SHARE, 1.0)
        elif name not in picture.taken_by:
            return []
        else:
            decode_s += cut_s
        return [Offer(0, name, round(float(estimate.nbytes(fit, given))), encode_s, decode_s + after_s)]


def _without_outliers(seconds: Sequence[float], per: NDArray[np.float64]) -> list[float]:
    """Times, none of them longer than three times what the median says: the first of a process loads libraries and
    takes many times as long as the others.

    Args:
        seconds: n of them.
        per: float64[n] > 0, what they grow with: a large picture's are no outlier.
    """
    each = np.array(seconds) / per
    found: list[float] = (np.minimum(each, 3 * np.median(each)) * per).tolist()
    return found


def _decoding(trials: Sequence[SampleTrial]) -> tuple[float, float, float]:
    """CPU seconds of decoding a file: per px, per byte of it, and for each."""
    sizes = np.array([[float(one.file.px), float(one.file.nbytes)] for one in trials])
    known = bool(sizes[:, 0].all())
    seconds = np.array(
        _without_outliers([one.op_s[0] for one in trials], sizes[:, 0] if known else np.ones(len(trials)))
    )
    if not known:
        return 0.0, 0.0, float(seconds.mean())
    (per_px, per_byte), *_ = np.linalg.lstsq(sizes, seconds, rcond=None)
    if per_px < 0 or per_byte < 0:  # too much alike to tell them apart
        return float(seconds.sum() / sizes[:, 0].sum()), 0.0, 0.0
    return float(per_px), float(per_byte), 0.0


def cheapest(offers: Sequence[Offer], prices: LoaderPrices) -> Offer:
    """The cheapest of some choices; of equal ones the first. What all answers take alike decides nothing.

    Args:
        offers: at least one.
        prices: of what they take.
    """
    wire, agent, rest, _ = prices
    return min(offers, key=lambda one: wire * one.nbytes + agent * one.agent_s + rest * one.rest_s)


def unproven(picture: KnownPicture, allowed: Collection[str]) -> tuple[int, str]:
    """The choice while nothing has been tried: the part of the file that will be read, where there is one.

    Args:
        picture: what has been told of the file.
        allowed: encodings that the loader accepts.
    """
    name = None if not picture.can_be_cut else of_parts(allowed)
    return FILE if name is None else (0, name)


def of_parts(allowed: Collection[str]) -> str | None:
    """The first encoding of the part of a file that will be read; None where the loader accepts none."""
    return next((name for name in encodings() if used_at(name) is UsedAt.FIRST_REGION and name in allowed), None)
