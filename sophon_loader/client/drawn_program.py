"""A sample's steps in numbers, which a request carries in place of the name of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.wire.limits import MAX_OPS
from sophon_loader.wire.messages import Sample

FILE, DECODED, SHRUNK, ALL_STEPS = range(len(SEGMENTS) - 1)
"""The segments that an agent can send."""
NO_STAGE = MAX_OPS + 1
"""Beyond the last stage of any pipeline."""


@dataclass(frozen=True)
class DrawnProgram:
    """A sample's program, and which stages of its pipeline the segments of the program are.

    Args:
        program: packed.
        file_nbytes: size of the file that it was drawn for.
        stages: the pipeline's stage with the same value, per segment; None for a segment without one.

    Example:
        >>> drawn = DrawnProgram(program.pack(), file_nbytes=109648, stages=(0, 1, 2, 3))
        >>> drawn.segment_of(3), drawn.stage_of(2)
        (3, 2)
    """

    program: bytes
    file_nbytes: int
    stages: tuple[int | None, ...]

    @property
    def furthest(self) -> int:
        """The stage behind all steps."""
        stage = self.stages[ALL_STEPS]
        assert stage is not None, "the end of the steps is the end of an op"
        return stage

    def segment_of(self, stage: int) -> int | None:
        """The segment whose value is that at a stage of the pipeline; None where there is none."""
        if stage == self.furthest:
            return ALL_STEPS if stage else FILE
        return self.stages.index(stage) if stage in self.stages else None

    def last_segment(self, stage: int) -> int:
        """The last segment whose value is that at a stage of the pipeline, or at an earlier one."""
        if 0 < self.furthest <= stage:
            return ALL_STEPS
        return max(segment for segment, its in enumerate(self.stages) if its is not None and its <= stage)

    def stage_of(self, segment: int) -> int | None:
        """The stage of the pipeline at which the value of a segment is; None for none."""
        return self.stages[segment] if 0 <= segment < len(self.stages) else None


def stages_of(counts: tuple[int, ...], shrunk: int) -> tuple[int | None, ...]:
    """The stages of a pipeline, by segment of its program.

    Args:
        counts: how many steps had been recorded at stage 1, at stage 2 and so on.
        shrunk: how many steps make the segment `shrunk`.
    """
    at_shrunk = counts.index(shrunk) + 1 if shrunk in counts else None
    # The picture as it was decoded is stage 1 but for its mode: the finisher makes it RGB, as op 0 does.
    return 0, 1, at_shrunk, len(counts)


def by_stages(sample: Sample, drawn: DrawnProgram) -> Sample:
    """An agent's answer to a program, with stages of the pipeline where it names segments.

    A segment without a stage becomes a stage beyond any pipeline, which the caller refuses.

    Args:
        sample: the answer.
        drawn: the program.
    """
    offers = [one._replace(cut=stage) for one in sample.offers if (stage := drawn.stage_of(one.cut)) is not None]
    stage = drawn.stage_of(sample.cut)
    return replace(sample, cut=NO_STAGE if stage is None else stage, offers=offers)
