"""The broker's ends of the channels to its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import zmq

from sophon_loader.encodings.encoding import Payload
from storage_agent.host.channel import Channel

_POLLIN, _POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)


class Lines:
    """Channels by the worker's number, watched by the broker's poller.

    Args:
        poller: to which channels are added, and from which they are taken when they close.

    Example:
        >>> lines = Lines(poller)
        >>> lines.open(1, channel)
        >>> lines.put(1, [message_types.FORGET, b"digest"])
        >>> lines.flush()
    """

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._channels: dict[int, Channel] = {}
        self._unsent: set[int] = set()
        """Workers for whom something has been put."""

    def open(self, number: int, channel: Channel) -> None:
        """Watch a channel.

        Args:
            number: the worker's.
            channel: its other end, which never waits.
        """
        self._channels[number] = channel
        self._poller.register(channel, _POLLIN)

    def ready(self, events: Mapping[Any, int]) -> list[tuple[int, int]]:
        """(number, event) of those that have something to read, or room for what waits, or have been closed.

        Args:
            events: as the poller gave them.
        """
        found = ((number, events.get(channel.fileno(), 0)) for number, channel in self._channels.items())
        return [(number, event) for number, event in found if event]

    def put(self, number: int, frames: Sequence[Payload]) -> None:
        """Have a message sent by the next `flush`; nothing if the worker has hung up.

        Args:
            number: the worker's.
            frames: see `message_types.py`.
        """
        channel = self._channels.get(number)
        if channel is not None:
            channel.put(frames)
            self._unsent.add(number)

    def flush(self) -> None:
        """Send what was put, to each worker by one call; what one does not take yet is kept."""
        while self._unsent:
            channel = self._channels.get(self._unsent.pop())
            if channel is None:
                continue
            with contextlib.suppress(OSError):  # it is gone, and will be found so when it is read
                channel.flush()
                if channel.waiting:
                    self._poller.register(channel, _POLLIN | _POLLOUT)

    def receive(self, number: int, event: int = _POLLIN, *, most: int) -> tuple[list[list[memoryview]], bool]:
        """The messages that have come, and whether the worker is still there; if not, the channel is closed.

        Args:
            number: the worker's.
            event: of `ready`.
            most: messages at once.
        """
        channel = self._channels.get(number)
        if channel is None:
            return [], False
        if event & _POLLOUT:
            with contextlib.suppress(OSError):  # it is gone; but it may have said something before
                channel.flush()
            if not channel.waiting:
                self._poller.register(channel, _POLLIN)
        messages: list[list[memoryview]] = []
        try:
            while len(messages) < most and (frames := channel.receive()) is not None:
                messages.append(frames)
                if channel.drained:
                    break
        except (EOFError, OSError):
            self.close(number)
            return messages, False
        return messages, True

    def close(self, number: int) -> None:
        """Close a channel, if it is open; what has come and was not received is lost."""
        channel = self._channels.pop(number, None)
        if channel is not None:
            self._poller.unregister(channel)
            channel.close()

    def close_all(self) -> None:
        """Close all of them, which ends the workers."""
        for number in list(self._channels):
            self.close(number)
