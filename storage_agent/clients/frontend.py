"""The socket that loaders connect to: receives their messages, sends replies, and notices when they leave."""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence

import zmq

from sophon_loader.encodings.encoding import Payload
from sophon_loader.host.endpoints import by_ipv6_alone
from sophon_loader.host.private_folder import PrivateFolder
from sophon_loader.host.system import acknowledged_nbytes, received_nbytes
from sophon_loader.wire.frames import frames_of, pack
from sophon_loader.wire.limits import MAX_HEADER_NBYTES
from sophon_loader.wire.messages import Message
from storage_agent.clients.connections import Connections
from storage_agent.clients.door import Door
from storage_agent.clients.key_files import EVERYTHING, Grant
from storage_agent.clients.pacing import Pacer
from storage_agent.clients.unread_replies import UnreadReplies
from storage_agent.clients.visits import Visits
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.host.checks import bind_refused
from storage_agent.host.descriptors import Incoming, hang_up, peer_of, room_for_connections, unsent_nbytes
from storage_agent.host.log import EventLog

MAX_WAITING_MESSAGES = 16
"""Maximum number of received, unread messages of one connection; the other messages stay in the kernel's buffer."""
MAX_HANDED_REPLIES = 32
"""Maximum number of one connection's replies that ZeroMQ may hold; further ones wait here, where bytes are counted."""
MAX_HANDED_NBYTES = 16 << 20
"""Maximum bytes of these replies, without the last one."""
MAX_UNREAD_REPLIES_NBYTES = 512 << 20
"""Maximum bytes of all clients' replies that ZeroMQ holds or that wait here, or twice the largest file if that is more.
Above it, no reply is made, and clients that do not read are disconnected."""
MAX_FRAMES = 3
"""Maximum number of a message's frames that are read: one more than any message may have."""
MAX_SKIPPED_FRAMES = 1000
"""Number of a message's frames that are skipped at once; a client that sends more is disconnected."""
LOOK_S = 0.1
"""Seconds between two looks at receiving connections, for messages without an end. While too many replies are unread,
also between two checks of whether clients read."""
LOOK_SHARE_S = 2e-4
"""Seconds per connection between two looks at all of them, while any receives bytes; one look takes about 2 us. ZeroMQ
may have read a connection's bytes before `Incoming` finds it."""
HANDSHAKE_MS = 10_000
"""Time for the exchange before a connection's first message, ms; slower connections are closed."""
BACKLOG = 1024
"""Number of connections that may wait to be accepted; the kernel may allow fewer."""
LINGER_MS = 2000
"""Time that a stop waits for replies to leave, ms."""
_NOBLOCK, _SNDMORE, _SRCFD = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.SRCFD)
"""Flags as ints: with pyzmq's enumerations a call takes longer than the work it does."""
SEALED_NBYTES = 33
"""Bytes that encryption adds to a frame (rfc.zeromq.org/spec/26)."""
_EVENT = struct.Struct("=Hi")
"""Layout of a monitor's first frame: the event, and its descriptor."""


class Frontend:
    """The ROUTER socket; one thread owns it.

    ZeroMQ does not say which client a closed connection belonged to. But each message names the descriptor that it came
    by, and the socket's monitor names the descriptor that was closed. So the agent notices a lost connection when the
    kernel does: when its process has ended or closed it, not when its host has lost power.

    Args:
        settings: address to bind, number of replies to hold, and their rate.
        log: for replies that cannot be delivered.

    Raises:
        AgentError: the address is in use, or not a valid one.

    Example:
        >>> frontend = Frontend(settings, EventLog())
        >>> client, *frames = frontend.receive()
        >>> frontend.tell(client, Pong("1"))

    Attributes:
        address: address that loaders connect to.
        door: lets in clients with a key; None to let in all.
        visits: the loaders that are connected.
        sent_nbytes: bytes handed to the socket, in total.
        incoming: readable when a quiet connection has received bytes; see `look`.
        dropped: number of replies that could not be delivered.
        hung_up: number of connections closed here: there were too many, or they sent a message without an end, or did
            not read.
    """

    def __init__(self, settings: AgentSettings, log: EventLog) -> None:
        self._log = log
        self._max_waiting = 2 * settings.max_outstanding
        self._pacer: Pacer[Sequence[Payload]] = Pacer(settings.limit_mbit)
        self._handed = UnreadReplies(2 * MAX_HANDED_REPLIES)
        self._most_unread_nbytes = max(MAX_UNREAD_REPLIES_NBYTES, 2 * settings.max_file_nbytes)
        self._crowded_look_s = 0.0
        """Time of the next check whether clients read, while too many replies are unread."""
        self._connections = Connections(room_for_connections(settings.workers + settings.op_workers_at_most))
        self.incoming = Incoming()
        self._receiving: set[int] = set()
        """Connections that have recently received bytes."""
        self._look_s = self._look_at_all_s = time.monotonic()
        self._skipping = 0
        """Frames of the message that is being skipped; 0 if there is none."""
        self._peer_of: dict[bytes, str] = {}
        self._owner_of: dict[bytes, str] = {}
        """Key and host of each client, at its first message."""
        self.visits = Visits()
        self._departed: deque[bytes] = deque()
        self._key_of: dict[bytes, str] = {}
        self._unknown: dict[int, str] = {}
        """At an agent with keys: connections without a message yet, and their `host:port`."""
        self.sent_nbytes = 0
        self.dropped = 0
        self.hung_up = 0
        self.door = None if settings.keys is None else Door(settings.keys, log)
        self._sealed_nbytes = 0 if settings.keys is None else SEALED_NBYTES
        self._folder: PrivateFolder | None = None
        self._context = zmq.Context()  # after the keys have been made, see `Pair.new`
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a loader that reconnects keeps its routing id
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_HEADER_NBYTES)
        self.socket.setsockopt(zmq.RCVHWM, MAX_WAITING_MESSAGES)
        self.socket.setsockopt(zmq.SNDHWM, MAX_HANDED_REPLIES)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self.door is not None:
            self.door.guard(self.socket)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self.address = self._bind(settings.bind)

    def _bind(self, endpoint: str) -> str:
        given = endpoint
        if endpoint == "ipc://*":
            self._folder = PrivateFolder()
            endpoint = f"ipc://{self._folder.socket}"
        if endpoint.startswith("tcp://") and endpoint.endswith(":0"):
            endpoint = endpoint[:-1] + "*"
        self.socket.setsockopt(zmq.IPV6, by_ipv6_alone(endpoint))
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise bind_refused(given, error) from error
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    # --- in ---------------------------------------------------------------------------------------------------

    def receive(self) -> list[bytes] | None:
        """Return the client's routing id and the first frames of its message; None if no message waits."""
        # Without pyzmq's recv_multipart: asking each frame whether there are more is a third faster than asking the
        # socket, and a frame knows the descriptor it came by.
        if self._skipping and not self._skip():
            return None
        try:
            frame = self.socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        client, descriptor, now_s = frame.bytes, -1, time.monotonic()
        if self.door is not None:
            self._key_of[client] = str(frame.get("User-Id"))
        with contextlib.suppress(zmq.ZMQError):  # e.g. ZMTP 2 comes without
            descriptor = frame.get(_SRCFD)
            if self._connections.client(descriptor) != client:
                self._meet(client, descriptor, frame, now_s)
        frames, nbytes = [client], 0
        while frame.more:
            frame = self.socket.recv(_NOBLOCK, copy=False)
            frames.append(frame.bytes)
            nbytes += self._on_wire_nbytes(frames[-1])
            if len(frames) > MAX_FRAMES and frame.more:
                self._skipping = 1
                if not self._skip():
                    self._hang_up(descriptor, "its message has too many frames")
                    return frames
                break
        if descriptor >= 0:
            self._connections.spoke(descriptor, now_s, nbytes)
        return frames

    def _on_wire_nbytes(self, frame: Payload) -> int:
        """Return a frame's size on the wire, including its head (rfc.zeromq.org/spec/23)."""
        nbytes = len(frame) + self._sealed_nbytes
        return nbytes + (2 if nbytes < 256 else 9)

    def _skip(self) -> bool:
        """Drop some frames of a message that has too many; True once all are dropped."""
        for _ in range(MAX_SKIPPED_FRAMES):
            if not self.socket.recv(_NOBLOCK, copy=False).more:
                self._skipping = 0
                return True
        return False

    def _meet(self, client: bytes, descriptor: int, frame: zmq.Frame, now_s: float) -> None:
        """Note the first message of a connection. If its descriptor was another connection's, that one has ended."""
        self.watch()
        self._unknown.pop(descriptor, None)
        if self._connections.client(descriptor) is not None:
            self._leave(descriptor)  # its last message was read after the monitor had reported its end
        self._connections.belongs(descriptor, client, now_s)
        self._handed.drop(client)  # replies to its earlier connection
        if client not in self._peer_of:
            self._peer_of[client] = str(frame.get("Peer-Address"))
            self._owner_of[client] = self.facts_of(client)["loader"]
            self.visits.came(self._owner_of[client])

    def departed(self) -> Iterator[bytes]:
        """Yield clients whose connection was closed since the last call. Each keeps its name until the next is asked
        for."""
        while self._departed:
            client = self._departed.popleft()
            if self._connections.descriptor(client) is not None:  # it came back before it left
                continue
            self.dropped += self._pacer.drop(client)
            self._handed.drop(client)
            yield client
            self._peer_of.pop(client, None)
            self._owner_of.pop(client, None)
            self._key_of.pop(client, None)

    def watch(self) -> None:
        """Read the monitor's events, and close connections if there are too many."""
        now_s = time.monotonic()
        while True:
            try:
                event, *_ = self.monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                break
            kind, descriptor = _EVENT.unpack(event)
            if kind == zmq.EVENT_ACCEPTED:
                self._leave(descriptor)  # its number was another's
                self._connections.accepted(descriptor, now_s)
                self.incoming.watch(descriptor)
                if self.door is not None:
                    self._unknown[descriptor] = peer_of(descriptor)
            else:
                if self.door is not None and (peer := self._unknown.get(descriptor)) is not None:
                    self.door.left(peer)
                self._leave(descriptor)
        for descriptor in self._connections.too_many(now_s):
            self._hang_up(descriptor, "there are too many connections", warning=False)

    def look(self, now_s: float) -> float | None:
        """Close connections that send a message without an end.

        Returns:
            Seconds until the next look; None while no connection receives bytes: the next one is due when `incoming` is
                readable.
        """
        if now_s < self._look_s:
            return self._look_s - now_s
        self._receiving.update(self.incoming.take())
        others: set[int] = set()  # which `incoming` still watches
        if self._receiving and now_s >= self._look_at_all_s:
            others = set(self._connections) - self._receiving
            self._receiving |= others
            self._look_at_all_s = now_s + max(LOOK_S, LOOK_SHARE_S * len(self._connections))
        endless, quiet = self._connections.look(self._receiving, received_nbytes, now_s)
        for descriptor, reason in endless.items():
            self._hang_up(descriptor, reason)
        for descriptor in quiet:
            self._receiving.discard(descriptor)
            if descriptor not in others:
                self.incoming.watch(descriptor)
        if not self._receiving:
            return None
        self._look_s = now_s + LOOK_S
        return LOOK_S

    def _hang_up(self, descriptor: int, reason: str, *, warning: bool = True) -> None:
        self.hung_up += 1
        client = self._connections.client(descriptor)
        whose = {"address": peer_of(descriptor)} if client is None else self.facts_of(client)
        hang_up(descriptor)
        facts = {**whose, "reason": reason, "connections": len(self._connections)}
        self._log.write("connection closed", facts, warning=warning)
        self._leave(descriptor)

    def _leave(self, descriptor: int) -> None:
        self._receiving.discard(descriptor)
        self._unknown.pop(descriptor, None)
        client = self._connections.closed(descriptor)
        if client is not None:
            self._departed.append(client)

    def owner_of(self, client: bytes) -> str:
        """Return the loader that a client belongs to, as `visits` knows it."""
        return self._owner_of.get(client, "?")

    def grant_of(self, client: bytes) -> Grant | None:
        """Return a client's current permissions; None if its key was removed."""
        return EVERYTHING if self.door is None else self.door.grant(self._key_of.get(client, ""))

    def facts_of(self, client: bytes) -> dict[str, str]:
        """Return a client's facts for the log.

        The loader is its key, if it has one, and its host; the connection is the end of its routing id.
        """
        grant = self.grant_of(client)
        key = f"{grant.name}@" if grant is not None and grant.name else ""
        return {"loader": f"{key}{self._peer_of.get(client, '?')}", "connection": client[-4:].hex()}

    # --- out --------------------------------------------------------------------------------------------------

    def tell(self, client: bytes, message: Message) -> None:
        """Send a message of the broker at once, before paced samples: a loader waits for it as a sign of life.

        Args:
            client: the receiver.
            message: without a payload.
        """
        frames = [pack(message)]
        if self._send(client, frames):
            return
        if self._pacer.waiting_of(client) < self._max_waiting:
            self._pacer.put(client, len(frames[0]), frames, first=True)
        else:
            self._drop(client, "the loader does not read")

    def reply(self, client: bytes, frames: Sequence[Payload]) -> None:
        """Send a reply when its turn comes; at once if no other waits.

        Args:
            client: the receiver.
            frames: header, and the payload if there is one.
        """
        if len(frames) > 1:
            frames = frames_of(*frames)
        nbytes, now_s = sum(len(frame) for frame in frames), time.monotonic()
        if self._pacer.is_free(now_s) and self._takes(client, nbytes) and self._send(client, frames):
            self._pacer.passed(nbytes, now_s)
        else:
            self._pacer.put(client, nbytes, frames)

    def send_due(self, now_s: float) -> None:
        """Send the replies whose turn it is.

        Args:
            now_s: the time.
        """
        while (waiting := self._pacer.due(now_s)) is not None:
            if self._takes(waiting.client, waiting.nbytes) and self._send(waiting.client, waiting.reply):
                self._pacer.sent(waiting, now_s)
            else:
                self._pacer.returned(waiting, now_s)

    @property
    def replies(self) -> int:
        """Number of waiting replies."""
        return len(self._pacer)

    def changes(self) -> Iterator[tuple[bytes, bool]]:
        """Yield (client, True) if so much waits for a client that no more should be made, (client, False) once it is
        less."""
        return self._pacer.changes()

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next reply is due; None without one."""
        return self._pacer.wait_s(now_s)

    def _takes(self, client: bytes, nbytes: int) -> bool:
        """True if ZeroMQ has room for a reply of this size."""
        if self._handed.has_room(client, nbytes, MAX_HANDED_NBYTES):
            return True
        self._see_what_was_taken(client)
        return self._handed.has_room(client, nbytes, MAX_HANDED_NBYTES)

    def _see_what_was_taken(self, client: bytes) -> None:
        descriptor = self._connections.descriptor(client)
        acknowledged = None if descriptor is None else acknowledged_nbytes(descriptor)
        if acknowledged is not None:
            self._handed.acknowledged(client, acknowledged)
        elif descriptor is None or not unsent_nbytes(descriptor):  # a Unix socket knows only what is left
            self._handed.taken(client)

    @property
    def unread_nbytes(self) -> tuple[int, int]:
        """Unread bytes, as far as known: (received here and not read, sent or waiting and not read by loaders)."""
        return self._connections.unread_nbytes, self._handed.nbytes + self._pacer.nbytes

    def crowded(self, now_s: float) -> bool:
        """True if so many replies are unread that none should be made; disconnects clients that do not read.

        Args:
            now_s: the time.
        """
        if self.unread_nbytes[1] <= self._most_unread_nbytes:
            return False
        if now_s >= self._crowded_look_s:
            self._crowded_look_s = now_s + LOOK_S
            for client in self._handed.clients:
                self._see_what_was_taken(client)
            left = self.unread_nbytes[1]
            reason = f"it does not read, and unread replies exceed {self._most_unread_nbytes >> 20} MiB"
            for client in self._handed.not_reading(now_s) if left > self._most_unread_nbytes else []:
                if left > self._most_unread_nbytes and (descriptor := self._connections.descriptor(client)) is not None:
                    left -= self._handed.nbytes_of(client) + self._pacer.nbytes_of(client)
                    self._hang_up(descriptor, reason)
        return self.unread_nbytes[1] > self._most_unread_nbytes

    def _send(self, client: bytes, frames: Sequence[Payload]) -> bool:
        """Hand a message to ZeroMQ; False if it holds enough for this client. A message for a client that has left is
        dropped."""
        if self.grant_of(client) is None:
            known = client in self._key_of
            self._drop(client, "its key has been removed" if known else "the loader is gone")
            return True
        try:
            self.socket.send(client, _NOBLOCK | _SNDMORE)
            for frame in frames[:-1]:
                self.socket.send(frame, _NOBLOCK | _SNDMORE)
            self.socket.send(frames[-1], _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN:
                return False
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._drop(client, "the loader is gone")
            self.dropped += self._pacer.drop(client)  # more may have been put since it left
            return True
        self.sent_nbytes += sum(len(frame) for frame in frames)
        self._handed.put(client, sum(map(self._on_wire_nbytes, frames)))
        return True

    def _drop(self, client: bytes, reason: str) -> None:
        self.dropped += 1
        self._log.info("reply dropped", **self.facts_of(client), reason=reason)

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return bool(self._context.closed)

    def close(self) -> None:
        """Flush the sent messages, and free the address. Safe to call twice."""
        if not self.closed:
            self.socket.disable_monitor()
            self._context.destroy(linger=None)
            self.incoming.close()
            if self._folder is not None:
                self._folder.remove()
