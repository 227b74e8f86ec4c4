"""An HTTP server that answers as Ray's head does, and as it does not."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sophon_loader.wire.actor import ACTOR_CLASS, actor_text

Answer = Callable[[BaseHTTPRequestHandler], None]


def actor(endpoint: str, *exports: str, **more: Any) -> dict[str, Any]:
    """As Ray lists one; it has many more fields."""
    said = actor_text(endpoint, exports)
    return {"actor_id": "5f0c", "class_name": ACTOR_CLASS, "state": "ALIVE", "repr_name": said, **more}


def listing(*actors: Any) -> bytes:
    found = {"total": len(actors), "num_after_truncation": len(actors), "result": actors}
    return json.dumps({"result": True, "msg": "", "data": {"result": found}}).encode()


class Head:
    """A server in this process; `answer` may be changed."""

    def __init__(self) -> None:
        self.answer: Answer = self.lists(actor("tcp://a:5555", "imagenet"), actor("tcp://b:1", "imagenet", "other"))
        self.asked: list[tuple[str, dict[str, str]]] = []
        head = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                head.asked.append((self.path, dict(self.headers)))
                with contextlib.suppress(OSError):  # who asked has hung up
                    head.answer(self)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.place = f"127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    def lists(self, *actors: Any) -> Answer:
        return self.says(listing(*actors))

    @staticmethod
    def says(body: bytes, status: int = 200, **headers: str) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(body)

        return answer

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()
