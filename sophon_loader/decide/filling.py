"""Number of samples that are requested as whole files only to fill a cache. Pure.

If only parts of files crossed, the cache would stay empty. A cached file costs more once, and nothing from then on. So
a few are requested in each epoch. They may cost a fiftieth of the epoch's time, or the time that the cache has saved
already, if that is more.
"""

from __future__ import annotations

import numpy as np

from sophon_loader.decide.dual import Column, Problem
from sophon_loader.decide.simplex import Vector

FILLED_SHARE = 0.03
"""Maximum share of the samples that are requested as files in an epoch, if parts of them would cross otherwise."""
AS_FILES = 0.03
"""Share of the files' bytes that a tariff must save for that limit to apply; with less, files cross anyway."""
LONGER = 0.02
"""Share by which filling may lengthen an epoch before anything is in the cache."""


def fill_of(problem: Problem, columns: list[Column], mix: Vector, admitted: float) -> float:
    """Return the share to request as files of the samples that are to be cached and are not yet, in [0, 1].

    Args:
        problem: N samples, and the share of them that is cached.
        columns: of the tariff.
        mix: float64[K], their shares.
        admitted: share of the samples that the cache is to hold.
    """
    missing = admitted - problem.cached
    if missing <= 0:
        return 0.0
    now = mix @ np.array([column.sums for column in columns[: len(mix)]])
    asked = mix @ np.array([column.asked for column in columns[: len(mix)]])
    longest_s = max((1 + LONGER) * problem.seconds(now), problem.seconds(asked))
    more_s = (problem.files - asked) * problem.seconds_per
    left_s = longest_s - now * problem.seconds_per
    costly = more_s > 0
    share = float((left_s[costly] / more_s[costly]).min()) if costly.any() else 1.0
    if problem.files[0] - asked[0] > AS_FILES * problem.files[0]:
        share = min(share, FILLED_SHARE)
    return min(1.0, max(0.0, share) / missing)
