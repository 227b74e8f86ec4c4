"""What the tests of archives write, open and expect."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.errors import ConfigError
from storage_agent.stores.archives.archive import Archive

LIMIT = 1000
Member = tuple[str, bytes | dict[str, Any]]
"""A name, and its bytes or what else stands in its header."""


def tar_of(path: Path, *members: Member, form: int = tarfile.GNU_FORMAT) -> Path:
    """A tar file of these members, in this order."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, what in members:
            header = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                header.size = len(what)
                tar.addfile(header, io.BytesIO(what))
            else:
                for field, value in what.items():
                    setattr(header, field, value)
                tar.addfile(header)
    return path


def zip_of(path: Path, *members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """A zip file of these members."""
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, data in members:
            made.writestr(name, data)
    return path


Opened = Callable[[Path | str], Archive]
"""What the fixture `opened` is."""


def refused(opened: Opened, location: Path | str, *said: str) -> None:
    """See that a start refuses a location, in words that hold these."""
    with pytest.raises(ConfigError) as caught:
        opened(location)
    text = str(caught.value)
    assert text.startswith("export 'd'") and all(one in text for one in said), text
    assert len(text) < 1000
