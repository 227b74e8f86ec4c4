"""The process that reads far stores: `python -m storage_agent.stores.buckets.fetch_child DESCRIPTOR`.

It alone has the stores' credentials and a TLS stack; it has no loader's key and talks to no loader. The agent's other
processes have connections to it: a question at a time, an answer at a time. It writes a line on standard output once it
serves, and ends when its standard input is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgpack

from sophon_loader.encodings.encoding import Payload
from storage_agent.host.channel import Channel
from storage_agent.stores.buckets import objects
from storage_agent.stores.buckets.held import HeldObjects
from storage_agent.stores.buckets.objects import StoreFailed

_PEER = struct.Struct("3i")


def main() -> int:
    """Serve until standard input is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; the agent decides
        signal.signal(number, signal.SIG_IGN)
    _quieten()
    listener = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_accept, args=(listener,), name="accept", daemon=True).start()
    print("serving", flush=True)
    while os.read(0, 4096):
        pass
    os._exit(0)


def _quieten() -> None:
    """Leave standard error to Python: the store's library writes its panics there, with what may be secret."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _accept(listener: socket.socket) -> None:
    while True:
        end, _ = listener.accept()
        _, user, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.geteuid():
            end.close()
            continue
        threading.Thread(target=_serve, args=(end,), name="serve", daemon=True).start()


def _serve(end: socket.socket) -> None:
    """Answer one connection's questions, until it is closed."""
    channel = Channel(end)
    with end:
        while True:
            try:
                question = channel.receive()
                assert question is not None, "a socket that waits has all of it"
                channel.send(_answer(msgpack.unpackb(question[0])))
            except (EOFError, OSError):
                return


def _answer(question: Sequence[object]) -> list[Payload]:
    """[what failed and why, what this process has counted; the bytes]; nothing failed if the first is empty."""
    what, why, data = "", "", []
    try:
        name, *arguments = question
        data.append(_CALLS[str(name)](*arguments))
    except StoreFailed as error:
        what, why = error.what, error.why
    except Exception as error:  # the boundary to a library whose texts may have what is secret
        what, why = "unreadable", type(error).__name__
    except BaseException as error:  # its panics are no Exceptions
        what, why = "library", f"the library that reads stores has failed ({type(error).__name__})"
    counted = os.getpid(), objects.COUNTS.slow_downs, time.process_time()
    return [msgpack.packb((what, why, counted)), *data]


_HELD = HeldObjects(objects.read)
_CALLS: dict[str, Callable[..., Payload]] = {
    "list": objects.write_listing,
    "look": objects.look,
    "fetch": _HELD.fetch,
    "expect": _HELD.expect,
    "read": _HELD.read,
}

if __name__ == "__main__":
    sys.exit(main())
