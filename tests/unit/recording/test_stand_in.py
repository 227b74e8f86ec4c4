"""A function that stands in for another: what stood there comes back, whichever threads come and go."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torchvision import transforms as v1
from torchvision.transforms import functional, v2

from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.pipeline.shipped import replaced_in
from sophon_loader.recording.containers import Containers
from sophon_loader.recording.stand_in import StandIn


class _Library:
    """Has a name; what is called in `meanwhile` is what another thread does as this one puts a function there."""

    def __init__(self) -> None:
        self.meanwhile: list[Any] = []
        self.open: Any = len

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "open" and self.meanwhile:
            self.meanwhile.pop()()
        super().__setattr__(name, value)


def test_threads_that_come_at_once_leave_what_stood_there() -> None:
    library = _Library()
    before = library.open
    others: list[Any] = []

    def make(stood: Any) -> Any:
        if others:  # a second thread comes while this one makes its function
            others.pop()()
        return lambda *given: stood(*given)

    hook = StandIn(library, "open", make)
    others.append(hook.place)
    library.meanwhile[:] = [hook.place, lambda: None]
    hook.place()
    assert library.open is not before and library.open([1]) == 1
    assert hook.take_away() and library.open is before
    hook.place()
    assert hook.take_away() and library.open is before


def test_what_somebody_else_puts_there_stays_and_is_called() -> None:
    library = _Library()
    hook = StandIn(library, "open", lambda stood: lambda *given: -stood(*given))
    hook.place()
    library.open = sum
    assert not hook.take_away() and library.open is sum
    hook.place()
    assert library.open([2, 3]) == -5
    assert hook.take_away() and library.open is sum


def test_what_stands_there_for_a_while_counts_as_what_was_there() -> None:
    """Another thread may look at a pipeline while samples of a recorded dataset are made."""
    before = functional.to_tensor
    with Containers().standing_in():
        assert functional.to_tensor is not before
        assert not [name for name, _ in replaced_in(functional) if name == "to_tensor"]
        assert not replaced_in_transform(v1.Compose) and not replaced_in_transform(v2.Compose)
        ours = functional.to_tensor

        @wraps(ours)
        def theirs(picture: Any) -> Any:
            return -ours(picture)

        functional.to_tensor = theirs
        try:
            assert [name for name, _ in replaced_in(functional) if name == "to_tensor"] == ["to_tensor"]
        finally:
            functional.to_tensor = ours
    assert functional.to_tensor is before
