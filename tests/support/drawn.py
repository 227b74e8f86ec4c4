"""How many examples the tests with drawn inputs take."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
"""Whether tests take as much as they are worth: in `make long`."""


def examples(count: int, **more: Any) -> settings:
    """Settings for this many examples under the profile `full`, and a fifth of them under `quick`.

    Args:
        count: examples.
        more: other settings of Hypothesis.
    """
    return settings(max_examples=max(1, count * settings.default.max_examples // 100), **more)
