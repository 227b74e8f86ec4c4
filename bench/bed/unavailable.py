"""Error with the reason why a bed cannot be made here."""

from __future__ import annotations


class TestBedUnavailable(RuntimeError):
    """This machine or user cannot provide linked hosts.

    Attributes:
        reason: what is missing.
        remedy: what the reader can do about it.
    """

    __test__ = False  # not a test class, though its name looks so to pytest

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy
