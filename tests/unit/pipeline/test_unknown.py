"""pipeline/unknown.py"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.op import Op, OpSpec
from sophon_loader.pipeline.unknown import why_local


def function(image: Any) -> Any:
    return image


class Own:
    def __call__(self, image: Any) -> Any:
        return image


class Sizes(list[int]):
    """As configurations have them."""


class Number(int):
    pass


def changed() -> Any:
    made = v1.CenterCrop(8)
    made.also = 3
    return made


def cyclic() -> Any:
    size: list[Any] = [8]
    size.append(size)
    return v1.Resize(size)


class Wider(v1.Resize):
    pass


def within() -> Any:
    class Within(Own):
        pass

    return Within()


@pytest.mark.parametrize(("transform", "reason", "remedy"), [
    (function, "it is a function", "make it a class at the top level of a module"),
    (partial(function), "it is a function", "make it a class at the top level of a module"),
    (v1.Lambda(function), "it is a function", "make it a class at the top level of a module"),
    (v2.Lambda(function), "it is a function", "make it a class at the top level of a module"),
    (Own(), "the op is not registered", "register it at both ends (register_op)"),
    (Wider(8), "a class derived from v1.Resize", "register it at both ends (register_op)"),
    (within(), "its class is defined inside a function", "define it at the top level of a module, and register it"),
    (v1.FiveCrop(3), "it gives a tuple of images", ""),
    (v1.RandomApply([function]), "parameter transforms holds a value of the type function, which", "give it plain"),
    (v1.RandomApply([v1.Resize(8), Own()]), "transforms holds a value of the type Own, which", "give it plain"),
    (v1.Resize(Sizes([8, 8])), "its parameter size is of the type Sizes, which", "give it as list(...) or tuple(...)"),
    (v1.Resize([8, Number(8)]), "its parameter size holds a value of the type Number, which", "give it plain values"),
    (v1.Resize([8, 1 << 70]), "its parameter size cannot be sent: integers in parameters must", "give it plain values"),
    (v1.Normalize(np.array(["0.5"]), [1.0]), "its parameter mean cannot be sent: array must be num", "plain values"),
    (changed(), "the op was changed after it was made", "give its constructor the values of now"),
], ids=lambda one: type(one).__name__ if not isinstance(one, str) else one[:12])  # fmt: skip
def test_an_op_that_stays_at_the_loader_has_a_reason_and_a_remedy(transform: Any, reason: str, remedy: str) -> None:
    op = chain_of(transform).ops[1]
    later, first = why_local(op, first=False), why_local(op, first=True)
    assert reason in later and remedy in later and "put it behind" not in later
    assert reason in first and remedy in first and "put it behind the ops that an agent is to run" in first
    is_function = "it is a function" in reason
    assert ("converts to RGB" in first) == is_function and "converts to RGB" not in later


def test_a_parameter_that_holds_itself_has_a_reason_too() -> None:
    assert "its parameter size " in why_local(chain_of(cyclic()).ops[1], first=False)


def test_a_description_that_is_too_large() -> None:
    op = Op("lab.Large", Own(), (), OpSpec("lab.Large", {"table": bytes(9)}))
    assert "too large to send" in why_local(op, first=False)
