"""Choosing for a program, and learning from its answer: what `agent_choice.py` does, by segments.

Costs are learnt for a signature: what the steps up to the segment `shrunk` have in common in all samples, and the mode
of the picture. The stages of an appraiser are the segments: decoded, shrunk, 8-bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from sophon_loader.kinds.image.execute import begin_program
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.primitives import BANDS
from sophon_loader.kinds.image.segments import SEGMENTS, shrunk
from sophon_loader.kinds.image.source import StepsOnPicture
from sophon_loader.programs.program import Program, Step
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.messages import Offer, Sample
from storage_agent.jobs.jobs import Job
from storage_agent.workers.agent_choice import Chosen, Done, Tried, choose, learn_from
from storage_agent.workers.appraiser import Appraiser
from storage_agent.workers.trials import KnownPicture, SampleTrial, Stages, looked_at

MAX_SIGNATURES = 64
"""Maximum number of signatures whose costs a worker keeps; those used last stay."""
LAST_MADE = len(SEGMENTS) - 2
"""The number of the last segment that an agent makes: the table is the loader's."""
_SHRUNK, _LAST = SEGMENTS.index("shrunk"), LAST_MADE


class ProgramAppraisers:
    """The appraisers of programs, by signature; the longest unused is forgotten.

    Example:
        >>> appraisers = ProgramAppraisers()
        >>> appraisers.of(signature_of(begun)).knows
        False
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Appraiser] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, signature: str) -> Appraiser:
        """The appraiser of a signature, a new one if it is not known.

        Args:
            signature: from `signature_of`, here or in another worker.
        """
        known = self._known.get(signature)
        if known is None:
            mode, shrinks, _ = signature.split()
            resized_at = _SHRUNK if shrinks == "shrinks" else None
            known = self._known[signature] = Appraiser(_LAST, _LAST, resized_at, BANDS[mode])
            if len(self._known) > MAX_SIGNATURES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(signature)
        return known

    def hear(self, signature: str, trial: SampleTrial) -> None:
        """Another worker has tried a sample.

        Args:
            signature: of its program.
            trial: what it found.
        """
        self.of(signature).learn(trial)


def signature_of(begun: StepsOnPicture) -> str:
    """Name of the programs that costs are learnt for together.

    It says the picture's mode, whether the steps shrink it, and a hash of those that do.

    Args:
        begun: a program's steps on its picture.
    """
    first = Program(ImageKind.name, "", (), begun.steps[: shrunk(begun.steps)])
    fixed, mode = first.signature(ImageKind()), begun.source.shape.mode
    return f"{mode} {'shrinks' if first.steps else 'as-it-is'} {content_hash(repr(fixed).encode())}"


def choose_for_program(job: Job, appraisers: ProgramAppraisers, picture: KnownPicture) -> Chosen:
    """The cheapest choice for a program, as segments.

    Args:
        job: the sample.
        appraisers: of this worker.
        picture: facts about its file.
    """
    assert picture.begun is not None, "a program has begun"
    steps, appraiser = picture.begun.steps, appraisers.of(signature_of(picture.begun))
    return choose(job, appraiser, picture, lambda offers: _told_apart(offers, steps, job.item.cut))


def _told_apart(offers: Sequence[Offer], steps: Sequence[Step], furthest: int) -> list[Offer]:
    """Offers without those at `shrunk` where that is what `decoded` or `8-bit` is. In the latter case they go by the
    name of `8-bit`, if the loader accepts it, since encodings of resized values are learnt at `shrunk`."""
    made = shrunk(steps)
    if made == len(steps) and furthest >= _LAST:
        others = [one for one in offers if one.cut != _LAST]
        return [one._replace(cut=_LAST) if one.cut == _SHRUNK else one for one in others]
    return [one for one in offers if made or one.cut != _SHRUNK]


def try_out_program(job: Job, done: Done, appraisers: ProgramAppraisers) -> tuple[Tried, str]:
    """Learn from a program that has been answered, and run it segment by segment, if it is time for that.

    Args:
        job: the sample.
        done: what came of it.
        appraisers: of this worker.

    Returns:
        What came of the trial, and the signature that it is for.
    """
    picture, sample = done.picture, done.answer.message
    if picture is None or picture.begun is None:
        return Tried(), ""
    signature = signature_of(picture.begun)
    cut = min(sample.cut, _SHRUNK) if isinstance(sample, Sample) else 0  # where encodings are learnt, see `_told_apart`
    program = picture.begun.program("")
    return learn_from(job, done, appraisers.of(signature), lambda: segments_of(program), cut), signature


def segments_of(program: Program) -> Stages:
    """The stages that a trial of a program runs.

    Args:
        program: that has been checked.
    """
    made = shrunk(program.steps)

    def run(data: bytes, after: Callable[[int, Any], None]) -> None:
        picture = begin_program(program, data).source.held(())  # all of it: what is said of the others is a share
        after(1, picture.image)
        picture.image = picture.run(program.steps[:made])
        after(_SHRUNK, picture.image)
        after(_LAST, picture.run(program.steps[made:]))

    return Stages(run, _SHRUNK if made else None)


def look_at_program(data: bytes, program: Program) -> KnownPicture:
    """Look at the file of a program without decoding it.

    Args:
        data: the file.
        program: that has been checked.

    Raises:
        ProgramRefused: it was made for another picture.
        Exception: see `begin_program`.
    """
    return looked_at(data, begin_program(program, data))
