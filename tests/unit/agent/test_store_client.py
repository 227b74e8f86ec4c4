"""Settings of stores at which the library that reads them fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from sophon_loader.errors import ConfigError
from storage_agent.stores.far import Far
from storage_agent.stores.fetcher import Fetcher

pytest.importorskip("obstore", reason="obstore is not installed")


def test_a_panic_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "nohost", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    fetcher = Fetcher()
    try:
        store = Far("d", "s3://photos", 1000, index_folder=tmp_path, fetcher=fetcher)
        for _ in range(2):
            with pytest.raises(ConfigError) as refused:
                store.check()
    finally:
        fetcher.close()
    assert "library that reads stores has failed (PanicException); see that settings" in str(refused.value)
    assert "AWS_ENDPOINT_URL" in str(refused.value) and not capfd.readouterr().err
