"""What the tests of answers and of archives read from."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from storage_agent.stores import Exports
from storage_agent.stores.archives.archive import Archive
from tests.support.encoding_examples import noise
from tests.unit.agent.samples import exports_of
from tests.unit.agent.stores.archives.made_archives import LIMIT, Opened


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    root = tmp_path_factory.mktemp("export")
    (root / "a").mkdir()
    Image.fromarray(noise(40, 60, 3)).save(root / "a" / "x.jpg", comment=b"from a camera")
    (root / "a" / "broken.jpg").write_bytes(b"\xff\xd8 no more")
    (root / "a" / "short.jpg").write_bytes((root / "a" / "x.jpg").read_bytes()[:-300])
    Image.fromarray(noise(40, 60, 3)).save(root / "a" / "x.png")
    return exports_of(root)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens an archive, or archives by their location, as the agent's start does."""

    def make(location: Path | str) -> Archive:
        if isinstance(location, Path):
            location = f"{location.suffix[1:]}://{location}"
        store = Archive("d", location, LIMIT, index_folder=tmp_path / "indexes")
        store.check()
        return store

    return make
