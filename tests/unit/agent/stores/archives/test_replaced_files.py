"""Files of pictures that are replaced under the index that an agent has of them, of each kind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sophon_loader.errors import SampleUnreadable
from tests.support.lance_sets import write_lance
from tests.support.mds import set_of
from tests.unit.agent.stores.archives.made_archives import Opened


def _parquet(folder: Path, values: list[bytes]) -> tuple[str, str]:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sophon_loader[tables]'")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"i": values}), folder / "s", compression="none")
    return f"parquet://{folder}/s", "s"


def _mds(folder: Path, values: list[bytes]) -> tuple[str, str]:
    set_of(folder, {"s": [[value] for value in values]}, {"i": ("jpeg", None)})
    return f"mds://{folder}", "s.mds"


def _lance(folder: Path, values: list[bytes]) -> tuple[str, str]:
    write_lance(folder / "s.lance", values)
    (file,) = (folder / "s.lance").rglob("data/*.lance")
    return f"lance://{folder}/s.lance", str(file.relative_to(folder))


@pytest.mark.parametrize("kind", [_parquet, _mds, _lance])
def test_a_file_that_is_replaced_under_its_index(
    tmp_path: Path, opened: Opened, kind: Callable[[Path, list[bytes]], tuple[str, str]]
) -> None:
    """By one of equal size: its time of change tells; if that is equal, too, the pictures' checksums do."""
    drawn = random.Random(1)
    made = [b"\xff\xd8\xff" + drawn.randbytes(200) for _ in range(9)]
    location, name = kind(tmp_path, made)
    path = tmp_path / name
    store, other = opened(location), opened(location)
    content, status = path.read_bytes(), os.stat(path)
    (tmp_path / "new").write_bytes(content.replace(made[4], bytes(len(made[4]))))
    os.replace(tmp_path / "new", path)
    with pytest.raises(SampleUnreadable, match=rf"{name}, which has changed, for 's/00000004.jpg'"):
        store.read("s/00000004.jpg")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert other.read("s/00000005.jpg") == made[5]
    with pytest.raises(SampleUnreadable, match=r"its index notes, .* 's/00000004.jpg' .* copy it anew"):
        other.read("s/00000004.jpg")
