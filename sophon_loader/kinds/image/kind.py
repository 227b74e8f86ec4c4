"""Pictures as a kind of file: what `programs.program.Kind` asks."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image import primitives
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.programs.program import Cost, Limits, Step


class ImageKind:
    """See `programs.program.Kind`; a program is made for (width, height, mode) of the decoded picture."""

    name = "image"
    segments: tuple[str, ...] = SEGMENTS

    def check(self, made_for: tuple[Any, ...], steps: Sequence[Step], limits: Limits) -> Cost:
        """See `programs.program.Kind`."""
        return primitives.check(made_for, steps, limits)

    def fixed(self, step: Step) -> Step | None:
        """See `programs.program.Kind`."""
        primitive = primitives.PRIMITIVES.get(step[0])
        if primitive is None:
            raise ProgramRefused(f"a step must be one of {sorted(primitives.PRIMITIVES)}, got {reprlib.repr(step[0])}")
        return None if primitive.fixed < 0 else step[: 1 + primitive.fixed]
