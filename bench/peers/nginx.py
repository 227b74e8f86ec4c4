"""nginx on a folder, with a configuration of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.systems import Settings

START_S = 10.0
CONFIGURATION = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
{user}
events {{}}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    keepalive_timeout 1h;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen {address}:{port}; root {root}; }}
}}
"""


@contextmanager
def serving(settings: Settings, root: Path) -> Iterator[None]:
    """Serve a folder over HTTP."""
    assert settings.nginx is not None
    file = Path(settings.folder, "nginx.conf")
    file.write_text(
        CONFIGURATION.format(
            folder=settings.folder,
            user="user root;" if os.geteuid() == 0 else "",
            address=settings.address,
            port=settings.port,
            root=root,
        )
    )
    server = subprocess.Popen([settings.nginx, "-e", "stderr", "-c", str(file)], stdin=subprocess.DEVNULL)
    try:
        _wait_for(settings.address, settings.port)
        yield
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(address: str, port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection((address, port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
