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
    with pytest.raises(ConfigError, match=r"tcp://fileserver:5555/imagenet, got ") as caught:
        Address.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [
    ("fileserver:5555/photos", "it lacks tcp://; write tcp://fileserver:5555/photos"),
    ("http://fileserver:5555/photos", "but agents do not speak http://; write tcp://fileserver:5555/photos"),
    ("tcp:/fileserver:5555/photos", "it lacks tcp://; write tcp://fileserver:5555/photos"),
    ("tcp//fileserver:5555/photos", "it lacks tcp://; write tcp://fileserver:5555/photos"),
    ("tcp://fileserver/photos", "it lacks the host or the port; write tcp://HOST:PORT/EXPORT"),
    ("tcp://fileserver:/photos", "it lacks the host or the port"),
    ("tcp://:5555/photos", "it lacks the host or the port"),
    ("tcp://fileserver:99999/photos", "whose port is 99999; a port is from 1 to 65535"),
    ("tcp://fileserver:5555", "it lacks the export; add the NAME of --export NAME=FOLDER: tcp://fileserver:5555/NAME"),
    ("tcp://fileserver:5555//", "it lacks the export"),
    ("tcp://fileserver:5555/photos ", "which has white space in it; remove that"),
    ("", "it lacks tcp://; write tcp://fileserver:5555/imagenet"),
    (5555, "write it as a text"),
])  # fmt: skip
def test_a_typo_is_named_with_the_remedy(text: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.parse(text)
    assert words in str(caught.value) and repr(text) in str(caught.value)
