"""Time that only moves when a test moves it."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
