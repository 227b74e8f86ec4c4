"""The socket at which loaders arrive: their messages in, replies out, and who has hung up."""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from collections.abc import Iterator, Sequence

import zmq

from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentError
from sophon_loader.wire.frames import pack
from sophon_loader.wire.limits import MAX_HEADER_NBYTES
from sophon_loader.wire.messages import Message
from storage_agent.log import EventLog
from storage_agent.pacing import Pacer
from storage_agent.settings import Settings

MAX_WAITING_MESSAGES = 64
"""Of one connection, received and not looked at; its own socket keeps the others."""
LINGER_MS = 2000
"""How long a stop waits for replies to leave."""
_NOBLOCK, _SNDMORE, _SRCFD = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.SRCFD)
"""As numbers: with pyzmq's enumerations a call takes longer than what it calls."""
_EVENT = struct.Struct("=Hi")
"""A monitor's first frame: the event, and the descriptor concerned."""


class Frontend:
    """The ROUTER socket; one thread owns it.

    ZeroMQ does not say which client a closed connection was; but each message names the descriptor it came by, and
    the socket's monitor names the descriptor that has been closed. So a connection is known to be gone when the kernel
    knows: when its process has ended or closed it, not when its host has lost power.

    Args:
        settings: where to bind, how many replies to keep, how fast they may leave.
        log: for replies that cannot be delivered.

    Raises:
        AgentError: the address is taken, or is none.

    Example:
        >>> frontend = Frontend(settings, EventLog())
        >>> client, *frames = frontend.receive()
        >>> frontend.tell(client, Pong("1"))

    Attributes:
        address: where loaders connect.
        sent_nbytes: all bytes handed to the socket.
        dropped: replies that could not be delivered.
    """

    def __init__(self, settings: Settings, log: EventLog) -> None:
        self._log = log
        self._pacer: Pacer[tuple[bytes, Sequence[Payload]]] = Pacer(settings.limit_mbit)
        self._client_at: dict[int, bytes] = {}
        self._peer_of: dict[bytes, str] = {}
        self._departed: deque[bytes] = deque()
        self.sent_nbytes = 0
        self.dropped = 0
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a loader that reconnects keeps its routing id
        self.socket.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_HEADER_NBYTES)
        self.socket.setsockopt(zmq.RCVHWM, MAX_WAITING_MESSAGES)
        self.socket.setsockopt(zmq.SNDHWM, 2 * settings.max_outstanding)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.address = self._bind(settings.bind)

    def _bind(self, endpoint: str) -> str:
        given = endpoint
        if endpoint.startswith("tcp://") and endpoint.endswith(":0"):
            endpoint = endpoint[:-1] + "*"
        self.socket.setsockopt(zmq.IPV6, endpoint.startswith("tcp://["))
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise AgentError(f"bind must be an address of this host with a free port, got {given}: {error}") from error
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    # --- in ---------------------------------------------------------------------------------------------------

    def receive(self) -> list[bytes] | None:
        """The client's routing id and the frames of its message; None when nothing waits."""
        # Without pyzmq's recv_multipart: asking each frame whether there are more is a third faster than asking the
        # socket, and a frame knows the descriptor it came by.
        try:
            frame = self.socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        client = frame.bytes
        with contextlib.suppress(zmq.ZMQError):  # ZMTP 2, say, comes without
            descriptor = frame.get(_SRCFD)
            if self._client_at.get(descriptor) != client:
                self._meet(client, descriptor, frame)
        frames = [client]
        while frame.more:
            frame = self.socket.recv(_NOBLOCK, copy=False)
            frames.append(frame.bytes)
        return frames

    def _meet(self, client: bytes, descriptor: int, frame: zmq.Frame) -> None:
        """The first message of a connection. Its descriptor may have been that of another, whose end comes first."""
        self.watch()
        self._leave(descriptor)  # a client whose last message was read after its end had been told
        self._client_at[descriptor] = client
        self._peer_of[client] = str(frame.get("Peer-Address"))

    def departed(self) -> Iterator[bytes]:
        """Clients whose connection has been closed since the last call; each has a name until the next is asked for."""
        while self._departed:
            client = self._departed.popleft()
            yield client
            if client not in self._client_at.values():
                self._peer_of.pop(client, None)

    def watch(self) -> None:
        """Take the monitor's events."""
        while True:
            try:
                event, *_ = self.monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            _, descriptor = _EVENT.unpack(event)
            self._leave(descriptor)

    def _leave(self, descriptor: int) -> None:
        client = self._client_at.pop(descriptor, None)
        if client is not None and client not in self._client_at.values():  # else it came back before it left
            self._departed.append(client)

    def name_of(self, client: bytes) -> str:
        """A client as the log names it: its host, and the end of its routing id."""
        return f"{self._peer_of.get(client, '?')}#{client[-4:].hex()}"

    # --- out --------------------------------------------------------------------------------------------------

    def tell(self, client: bytes, message: Message) -> None:
        """Send a message of the broker's own at once, past paced samples: a loader waits for it as a sign of life.

        Args:
            client: to whom.
            message: without a payload.
        """
        self._send(client, [pack(message)])

    def reply(self, client: bytes, frames: Sequence[Payload]) -> None:
        """Send an answer when its turn comes.

        Args:
            client: to whom.
            frames: header, and the payload if there is one.
        """
        self._pacer.put(sum(len(frame) for frame in frames), (client, frames))

    def send_due(self, now_s: float) -> None:
        """Send the answers whose turn it is.

        Args:
            now_s: the time.
        """
        while (reply := self._pacer.due(now_s)) is not None:
            self._send(*reply)

    @property
    def replies(self) -> int:
        """Answers whose turn has not come."""
        return len(self._pacer)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next answer is due; None when there is none."""
        return self._pacer.wait_s(now_s)

    def _send(self, client: bytes, frames: Sequence[Payload]) -> None:
        try:
            self.socket.send(client, _NOBLOCK | _SNDMORE)
            for frame in frames[:-1]:
                self.socket.send(frame, _NOBLOCK | _SNDMORE)
            self.socket.send(frames[-1], _NOBLOCK)
            self.sent_nbytes += sum(len(frame) for frame in frames)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self.dropped += 1
            reason = "the loader is gone" if error.errno == zmq.EHOSTUNREACH else "the loader does not read"
            self._log.info("reply dropped", client=self.name_of(client), reason=reason)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return bool(self._context.closed)

    def close(self) -> None:
        """Flush what has been sent, free the address. Safe to call twice."""
        if not self.closed:
            self.socket.disable_monitor()
            self._context.destroy(linger=None)
