"""An Azure server on this host, Azurite, Microsoft's emulator of blob storage."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, with its key, which is in its manual."""
START_S = 30.0
_VERSION = "2021-08-06"


class Azurite:
    """The server, and what tests put there; `for_tests` starts one.

    Attributes:
        endpoint: where it listens, with the account.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def container(self, name: str) -> None:
        """Make a container; obstore does not."""
        date = datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": date, "x-ms-version": _VERSION}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
        signed = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
        headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
        url = f"{self.endpoint}/{name}?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=10).close()

    def put_tree(self, container: str, root: Path) -> None:
        """Write all files below a folder, by their paths below it."""
        import obstore
        from obstore.store import AzureStore

        config: Any = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": self.endpoint}
        store = AzureStore(container, config=config, client_options={"allow_http": True})
        for path in sorted(root.rglob("*")):
            if path.is_file():
                obstore.put(store, str(path.relative_to(root)), path.read_bytes())

    def environment(self) -> dict[str, str]:
        """What an agent needs in its environment."""
        account = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
        return {**account, "AZURE_STORAGE_ENDPOINT": self.endpoint}


@contextmanager
def for_tests(folder: Path) -> Iterator[Azurite]:
    """A server for the duration of a block, or the test is skipped.

    Args:
        folder: an empty one, for its files.
    """
    pytest.importorskip("obstore", reason="obstore is not installed")
    found = shutil.which("azurite-blob")
    if found is None:
        pytest.skip("Azurite is not on PATH: npm install azurite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [found, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent"]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < end_s and process.poll() is None, "Azurite must start; see its log"
                time.sleep(0.1)
        yield Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}")
    finally:
        process.kill()
        process.wait()
