"""Folders that a user has paired."""

from __future__ import annotations

import pytest

from sophon_loader.datasets.given_roots import GivenRoots

ROOTS = GivenRoots({"/mnt/a/": "", "/mnt/a/masks": "old/masks/", "/mnt/./b": "b"})


@pytest.mark.parametrize(
    ("path", "root", "key"),
    [
        ("/mnt/a/cat/1.jpg", "/mnt/a/", "cat/1.jpg"),
        ("/mnt/a/masks/1.png", "/mnt/a/masks/", "old/masks/1.png"),  # the innermost one counts
        ("/mnt/b/1.jpg", "/mnt/b/", "b/1.jpg"),
        ("/mnt/ab/1.jpg", None, None),
        ("/mnt/1.jpg", None, None),
    ],
)
def test_keys(path: str, root: str | None, key: str | None) -> None:
    assert (ROOTS.root_of(path), ROOTS.key_of(path)) == (root, key)


def test_the_whole_host_may_be_an_export() -> None:
    assert GivenRoots({"/": "host"}).key_of("/mnt/1.jpg") == "host/mnt/1.jpg"


def test_without_any_nothing_is_given() -> None:
    assert ROOTS and not GivenRoots({})
