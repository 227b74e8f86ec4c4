"""What the loader's arguments mean, and where its warnings point."""

from __future__ import annotations

import warnings

import pytest

from sophon_loader import LocalAgent, OffloadingDataLoader, OffloadOptions, native
from sophon_loader.client.address import Address
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import ConfigError, OffloadWarning
from sophon_loader.settings import Settings


def checked(**arguments: object) -> Settings:
    defaults = {"agent": None, "policy": "auto", "encodings": "auto", "seed": None, "profile": None, "tail": "loader"}
    return Settings.checked(**{**defaults, "device_prefetch": 0, "options": None, **arguments})


@pytest.mark.parametrize("depth", [-1, 1.5, True, "2", None], ids=str)
def test_device_prefetch_is_a_number_of_batches(depth: object) -> None:
    assert checked(device_prefetch=2).device_prefetch == 2
    with pytest.raises(ConfigError, match="device_prefetch must be a whole number of batches"):
        checked(device_prefetch=depth)


def test_defaults() -> None:
    settings = checked()
    assert settings.agent is None and settings.seed is None and settings.profile is None and settings.tail is None
    assert settings.policy.name == "auto" and settings.options == OffloadOptions()
    assert settings.encodings == encoding_names()


@pytest.mark.parametrize(
    ("agent", "meant"),
    [
        ("local", LocalAgent()),
        (["local"], LocalAgent()),
        (LocalAgent(workers=3), LocalAgent(workers=3)),
        ("tcp://h:5555/x/y", Address("tcp://h:5555", "x", "y")),
        (("tcp://h:5555/x",), Address("tcp://h:5555", "x")),
    ],
    ids=str,
)
def test_agents(agent: object, meant: object) -> None:
    assert checked(agent=agent).agent == meant


def test_encodings_come_in_the_order_of_all() -> None:
    assert checked(encodings=["webp", "file"]).encodings == ("file", "webp")
    assert checked(encodings="paper").encodings == ("file", "pixels", "array")


def test_a_missing_extension_is_warned_of_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", False)
    monkeypatch.setattr(native, "reason", "the C extension is not built; build it")
    with pytest.warns(OffloadWarning, match="roi-jpeg is not available: the C extension is not built; build it"):
        checked(agent="local")
    checked()  # without an agent nothing is lost, and `file` alone was asked for below
    checked(agent="local", encodings=["file"])


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = OffloadingDataLoader([1, 2, 3], agent="tcp://h:5555/x")  # type: ignore[arg-type]
        list(loader)  # else another warning says that it was not used
    (warning,) = caught
    assert warning.category is OffloadWarning and warning.filename == __file__
