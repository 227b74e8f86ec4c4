"""What the tests of answers read from."""

from __future__ import annotations

import pytest
from PIL import Image

from storage_agent.stores import Exports
from tests.support.encoding_examples import noise
from tests.unit.agent.samples import exports_of


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    root = tmp_path_factory.mktemp("export")
    (root / "a").mkdir()
    Image.fromarray(noise(40, 60, 3)).save(root / "a" / "x.jpg", comment=b"from a camera")
    (root / "a" / "broken.jpg").write_bytes(b"\xff\xd8 no more")
    (root / "a" / "short.jpg").write_bytes((root / "a" / "x.jpg").read_bytes()[:-300])
    Image.fromarray(noise(40, 60, 3)).save(root / "a" / "x.png")
    return exports_of(root)
