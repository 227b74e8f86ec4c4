"""One socket to one agent. ZeroMQ is known here and in `handshakes.py` alone. Not shared between threads."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import weakref
from collections.abc import Sequence

import zmq

from sophon_loader.client.address import Address
from sophon_loader.client.handshakes import FAILED, Handshakes
from sophon_loader.client.options import OffloadOptions
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentUnreachable, ConfigError
from sophon_loader.host.endpoints import Family
from sophon_loader.host.system import now_s, received_nbytes
from sophon_loader.wire.frames import check_frames, pack, payload_of, unpack
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from sophon_loader.wire.messages import Message

_CONNECT_S, _HANDSHAKE_S = 2.0, 2.0
"""How long to wait for a host to take a connection, and for the program there to greet at least, before trying anew."""
_RECONNECT_S, _MAX_RECONNECT_S = 0.1, 1.0
"""How long to wait between two attempts: twice as long each time. After a handshake that failed, the longer one."""
_MAX_MS = (1 << 31) - 1
_MAX_KEEPALIVE = 127
"""Seconds, and probes, that every kernel takes."""
_EVENT = struct.Struct("=HI")  # a monitor's first frame: the event, and what more is known of it
_NOBLOCK = int(zmq.NOBLOCK)
"""As a number: with pyzmq's enumeration a call takes longer."""


class Link:
    """Messages to and from an agent.

    ZeroMQ makes a connection anew that is closed by the other end. It does so neither after bytes that it cannot read
    (it then has none any more) nor after ones that it cannot decrypt (once it has told its monitor of that, it keeps
    the connection and does not look at it). Its heartbeats must not be used: libzmq 4.3.5 sends one by a connection
    that it does not look at and that the other end has closed, and an assertion ends the process. So `renew` makes the
    socket anew, wherever a connection is found to be of no use, and whoever waits for an agent pings it (`Silence`).

    Args:
        address: the agent.
        window: replies that may be waiting in the socket; the caller asks for no more samples than that.
        options: the time-outs; None for the defaults.
        beside: a link of this process whose threads this one uses, and which is closed after it; None for its own.

    Attributes:
        received_nbytes: bytes received so far.
        reconnects: how often the connection was lost and came back; what was on its way then may be lost.
        lost: whether the other end has closed the connection, and it has not come back.

    Example:
        >>> link = Link(Address.parse("tcp://fileserver:5555/photos"), window=1)
        >>> link.send(Ping())
        >>> link.receive(timeout_s=5.0)
        (Pong(instance='1'), b'')
        >>> link.close()
    """

    def __init__(
        self, address: Address, window: int, options: OffloadOptions | None = None, beside: Link | None = None
    ) -> None:
        self.address = address
        self.received_nbytes = 0
        self.reconnects = 0
        self._options = options or OffloadOptions()
        self._most_messages = 2 * window + 64
        # A stable id: replies still reach this loader after its connection broke and came back.
        self._id = b"L" + os.urandom(16)
        self._handshakes = Handshakes(address)
        self._family = Family(address.endpoint)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context() if beside is None else beside._context
        # Also for whoever forgets to close it: pyzmq would warn of a leak, from a destructor.
        self._sockets: list[zmq.Socket[bytes]] = []
        """The one of now, which must not be collected before its monitor is ended, and then the monitor's."""
        own = self._context if beside is None else None
        self._closed = weakref.finalize(self, _close, own, self._sockets, os.getpid())
        self._open()

    def _open(self) -> None:
        """Make the socket, and the monitor that tells what becomes of its connection.

        Raises:
            ConfigError: the address is none.
        """
        self.lost = self._shaken = self._connected = False
        self._unsent: list[list[bytes]] = []  # what the socket has been given, while the other family may be tried
        self._descriptor: int | None = None
        self._renew_at_s = math.inf
        self._socket = socket = self._context.socket(zmq.DEALER)
        self._sockets[:] = [socket]
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTING_ID, self._id)
        socket.setsockopt(zmq.RCVHWM, self._most_messages)
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_PAYLOAD_NBYTES)
        self._find_out_soon(self._options)
        socket.setsockopt(zmq.IPV6, self._family.by_ipv6)
        if (token := self.address.token) is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, token.server)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, token.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, token.secret)
        events = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | FAILED
        self._monitor = socket.get_monitor_socket(events | zmq.EVENT_CONNECT_RETRIED)
        self._sockets.append(self._monitor)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            socket.connect(self.address.endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"agent must be an address that can be connected to, got {self.address}: {error}"
            ) from error

    def renew(self) -> None:
        """Make the connection anew; what is on its way, in either direction, is lost.

        Raises:
            AgentUnreachable: this process ends.
        """
        try:
            self._open_anew()
        except zmq.ZMQError as error:
            raise AgentUnreachable(f"agent {self.address} must stay connected, got: {error}") from error
        self.reconnects += 1

    def _open_anew(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._open()

    def _try_other_family(self) -> None:
        """Where nobody has taken a connection, try the host's addresses of the other family, if it has some and that is
        due. Nothing is lost: what the socket has been given is sent again."""
        if self._family.turned(now_s()):
            unsent = self._unsent
            self._open_anew()
            for frames in unsent:
                self._give(frames)

    def _give(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        if self._family.has_both and not self._connected:
            self._unsent.append(frames)

    def _find_out_soon(self, options: OffloadOptions) -> None:
        """Have ZeroMQ try to connect anew soon, and the kernel notice that the other host has vanished without a word.

        The kernel does that while this process does something else; what the kernel's probes find alive and is not
        (a proxy, say) `Silence` finds out. They also keep a firewall from forgetting a connection that is idle.
        """
        keepalive = {
            zmq.TCP_KEEPALIVE: 1,
            zmq.TCP_KEEPALIVE_IDLE: options.heartbeat_s,
            zmq.TCP_KEEPALIVE_INTVL: options.heartbeat_s,
            zmq.TCP_KEEPALIVE_CNT: options.dead_after_s / (2 * options.heartbeat_s),
        }
        for option, value in keepalive.items():
            self._socket.setsockopt(option, min(max(1, math.ceil(value)), _MAX_KEEPALIVE))
        milliseconds = {
            zmq.HANDSHAKE_IVL: 1000 * max(_HANDSHAKE_S, 0.6 * options.dead_after_s),
            zmq.CONNECT_TIMEOUT: 1000 * _CONNECT_S,
            zmq.RECONNECT_IVL: 1000 * _RECONNECT_S,
            zmq.RECONNECT_IVL_MAX: 1000 * _MAX_RECONNECT_S,
        }
        for option, value in milliseconds.items():
            self._socket.setsockopt(option, min(max(1, int(value)), _MAX_MS))

    def send(self, message: Message, payload: bytes | None = None) -> None:
        """Queue a message; never waits (ZeroMQ keeps it while the agent is away).

        Args:
            message: becomes the first frame.
            payload: the second frame; None for the kinds of message without one.

        Raises:
            AgentUnreachable: the queue is full, or the socket closed.
        """
        frames = [pack(message)] if payload is None else [pack(message, payload), payload]
        try:
            try:
                self._give(frames)
            except zmq.Again:  # there is no connection, and will be none, or it has long taken nothing
                self.renew()
                self._give(frames)
        except zmq.Again as error:
            raise AgentUnreachable(f"agent {self.address} must accept messages, got a full queue") from error
        except zmq.ZMQError as error:  # closed, at the end of this process
            raise AgentUnreachable(f"agent {self.address} must stay connected, got: {error}") from error

    def receive(self, timeout_s: float) -> tuple[Message, Payload] | None:
        """The next message and its payload (b"" for kinds without), or None after `timeout_s`.

        Raises:
            CorruptMessage: it was damaged on its way.
            WireError: the agent broke the protocol.
        """
        try:
            frames = self._frames()
            end_s = now_s() + timeout_s
            while not frames and self._poller.poll(max(0, int(1000 * timeout_s))):
                self._watch()
                self._try_other_family()
                frames = self._frames()
                timeout_s = end_s - now_s()
            if not frames:
                self._try_other_family()
        except zmq.ZMQError as error:  # closed, at the end of this process
            raise AgentUnreachable(f"agent {self.address} must stay connected, got: {error}") from error
        if not frames:
            if now_s() >= self._renew_at_s:
                self.renew()
            return None
        self.received_nbytes += sum(len(frame) for frame in frames)
        header, *rest = (frame.buffer for frame in frames)
        message, payload = unpack(header), payload_of(rest)
        check_frames(message, header, payload)
        return message, b"" if payload is None else payload

    def _frames(self) -> list[zmq.Frame]:
        """The frames of a message that has arrived; [] when there is none."""
        try:
            frames = [self._socket.recv(_NOBLOCK, copy=False)]
            while frames[-1].more:
                frames.append(self._socket.recv(_NOBLOCK, copy=False))
        except zmq.Again:
            return []
        return frames

    def arrived_nbytes(self) -> int:
        """What has come by the TCP connection of now, parts of messages too; 0 where that cannot be told."""
        return 0 if self._descriptor is None else received_nbytes(self._descriptor) or 0

    def current(self) -> int:
        """Which connection this is now: `reconnects`, with all counted of which news has come."""
        with contextlib.suppress(zmq.ZMQError):  # closed, at the end of this process
            self._watch()
        return self.reconnects

    def _watch(self) -> None:
        """Take the monitor's events. A handshake that "fails" later than the first is of bytes that cannot be read."""
        while True:
            try:
                head, *_ = self._monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            event, value = _EVENT.unpack(head)
            if event == zmq.EVENT_CONNECTED:
                self._descriptor, self._connected = value, True
                self._unsent.clear()
                self._family.connected()
            elif event == zmq.EVENT_CONNECT_RETRIED:
                if not self._connected:  # else an agent was there, who may have refused the key
                    self._family.refused(now_s())
            elif event & FAILED:
                self._handshakes.failed(event, value)
                self._renew_at_s = now_s() + (0.0 if self._shaken else _MAX_RECONNECT_S)
            elif event == zmq.EVENT_DISCONNECTED:
                self.lost, self._descriptor = True, None  # whose number may be another's from now on
            else:
                self._handshakes.succeeded()
                self._family.reached()
                self.reconnects += self.lost
                self.lost, self._shaken, self._renew_at_s = False, True, math.inf

    def close(self) -> None:
        """Close the socket; unsent requests are thrown away."""
        self._closed()


def arrived(links: Sequence[Link], timeout_s: float) -> list[int]:
    """Numbers of the links that have something to `receive`, be it only news of the connection; [] after `timeout_s`.

    Raises:
        AgentUnreachable: this process ends.
    """
    try:
        # Looked up each time: a socket is another one after `renew`.
        sockets = [(one, zmq.POLLIN) for link in links for one in link._sockets]
        found = {one for one, _ in zmq.zmq_poll(sockets, max(0, int(1000 * timeout_s)))}
    except zmq.ZMQError as error:
        raise AgentUnreachable(f"agents must stay connected, got: {error}") from error
    return [number for number, link in enumerate(links) if not found.isdisjoint(link._sockets)]


def _close(context: zmq.Context[zmq.Socket[bytes]] | None, sockets: list[zmq.Socket[bytes]], pid: int) -> None:
    if os.getpid() != pid:  # a forked copy has no thread behind its sockets, so closing them could wait for ever
        return
    for socket in sockets[:1]:
        if not socket.closed:  # as it is where the link with the context was closed first
            socket.disable_monitor()
    if context is not None:
        context.destroy(linger=0)  # the monitor's socket, too
        return
    for socket in reversed(sockets):
        socket.close(linger=0)
