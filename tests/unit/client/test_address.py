"""Addresses: which texts are one, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest

from sophon_loader.client.address import Address
from sophon_loader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "endpoint", "export", "folder"),
    [
        ("tcp://fileserver:5555/imagenet", "tcp://fileserver:5555", "imagenet", ""),
        ("tcp://10.0.0.7:1/x/", "tcp://10.0.0.7:1", "x", ""),
        ("tcp://h:65535/x/train", "tcp://h:65535", "x", "train"),
        ("tcp://h:5555/x/a/b c/d//", "tcp://h:5555", "x", "a/b c/d"),
        ("tcp://[::1]:5555/x", "tcp://[::1]:5555", "x", ""),
    ],
)
def test_an_address_is_an_endpoint_an_export_and_perhaps_a_folder(
    text: str, endpoint: str, export: str, folder: str
) -> None:
    address = Address.parse(text)
    assert address == Address(endpoint, export, folder)
    assert Address.parse(str(address)) == address


def test_keys_are_relative_to_the_export() -> None:
    assert Address.parse("tcp://h:1/x").key("cat/1.jpg") == "cat/1.jpg"
    assert Address.parse("tcp://h:1/x/train").key("cat/1.jpg") == "train/cat/1.jpg"


@pytest.mark.parametrize(
    "text",
    [
        *("", "local", "imagenet", "tcp://h:5555", "tcp://h:5555/", "tcp://h/x", "tcp://h:port/x", "http://h:1/x"),
        *("tcp://h:123456/x", "tcp://h:65536/x", "tcp://h:0/x"),
        *("tcp://a b:1/x", "tcp://h:1/a b", "tcp:///h:1/x", None, 7, b"tcp://h:1/x"),
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"tcp://fileserver:5555/imagenet, got .*name of an export") as caught:
        Address.parse(text)
    assert repr(text) in str(caught.value)
