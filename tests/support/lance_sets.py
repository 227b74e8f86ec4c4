"""Lance sets of pictures, where pylance is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_WHY = "pylance is not installed: pip install 'sophon_loader[lance]'"


def write_lance(path: Path, values: Sequence[bytes | None], **options: Any) -> Any:
    """Write or append a fragment with a blob column `image` and a column `label`; skips the test without pylance.

    Args:
        path: folder of the set.
        values: the pictures.
        options: those of `lance.blob_field`.
    """
    lance = pytest.importorskip("lance", reason=_WHY)
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([lance.blob_field("image", **options), pa.field("label", pa.int64())])
    table = pa.table({"image": lance.blob_array(list(values)), "label": range(len(values))}, schema)
    mode = "append" if path.exists() else "create"
    return lance.write_dataset(table, str(path), mode=mode, data_storage_version="2.2")
