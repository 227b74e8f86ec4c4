"""The catalogue: every op is found on the first look-up in a process, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline import op_catalogue
from sophon_loader.pipeline.chain import DECODE, chain_from, chain_of, description_of
from sophon_loader.pipeline.op import Op, OpSpec
from sophon_loader.pipeline.op_catalogue import ENTRY_POINTS, registered
from sophon_loader.pipeline.op_registry import build_op, draws_of, knows, op_of, register_op
from sophon_loader.pipeline.plain import from_plain


class Brighten:
    """An op of the user's."""


class Darken:
    """Another."""


@pytest.fixture(autouse=True)
def _own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    op_catalogue.load_ops()
    monkeypatch.setattr(op_catalogue, "_BY_NAME", dict(op_catalogue._BY_NAME))
    monkeypatch.setattr(op_catalogue, "_BY_CLASS", dict(op_catalogue._BY_CLASS))


def test_names_are_given_away_once() -> None:
    register_op("test.Brighten", Brighten)
    register_op("test.Brighten", Brighten)
    with pytest.raises(PipelineError, match=r"op name must not be in use, got 'test\.Brighten'"):
        register_op("test.Brighten", Darken)


def _installed(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """One package is installed whose entry point is `load`, and nothing has been looked up yet."""
    points = {ENTRY_POINTS: [SimpleNamespace(load=load)]}
    monkeypatch.setattr(op_catalogue, "entry_points", lambda group: points.get(group, []))
    monkeypatch.setattr(op_catalogue, "_loaded", False)


def test_entry_points_are_loaded_once_and_may_look_up_ops_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load() -> None:
        loaded.append(knows("v2.Resize"))
        register_op("test.Brighten", Brighten)

    _installed(monkeypatch, load)
    assert knows("test.Brighten") and "test.Brighten" in registered()
    assert loaded == [True]


def test_a_package_that_cannot_be_imported_is_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ImportError("no such module")

    _installed(monkeypatch, load)
    for _ in range(2):
        with pytest.raises(ImportError, match="no such module"):
            knows("v2.Resize")


LOOK_UPS: dict[str, Callable[[], Any]] = {
    "op_of": lambda: op_of(v2.Resize(8)).spec,
    "build_op": lambda: build_op(OpSpec("v2.Resize", {"size": 8})),
    "knows": lambda: knows("v2.Resize"),
    "draws_of": lambda: draws_of(v2.RandomCrop(8)) == ("torch",),
    "registered": lambda: registered(),
    "from_plain": lambda: from_plain({"$": "op", "name": "v2.Identity", "params": {}}),
    "chain_of": lambda: chain_of(v2.Resize(8)).describable == 2,
    "chain_from": lambda: len(chain_from(description_of([DECODE, Op("", len, (), OpSpec("v2.Identity", {}))]))) == 2,
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_the_first_look_up_of_a_process_finds_torchvision_s_ops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for attribute, empty in (("_BY_NAME", {}), ("_BY_CLASS", {}), ("_loaded", False)):
        monkeypatch.setattr(op_catalogue, attribute, empty)
    assert LOOK_UPS[name]()
