"""A relay between loaders and an agent whose connections a test or bench spoils: in bytes, or message by message.

It reads just enough of ZMTP 3 (https://rfc.zeromq.org/spec/23/) to find the start and end of messages. A
connection has a greeting of 64 bytes, then frames of a flag byte, a size of one or eight bytes, and a body. So it takes
no part in the conversation, and does only what a network could do.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import Literal

from bench.bed.relay import END, Passing, Relay

GREETING_NBYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
"""Bits of a frame's flag byte."""
MBIT = 1000.0
Strike = Literal["drop", "double", "reorder", "flip", "flip header", "flip size", "truncate"]
"""Faults of a message: it is lost, comes twice, or comes after the next one. Or a bit is changed in its last frame (a
payload, if there is one), in its first one, or in that one's size. Or it ends in the middle together with the
connection."""


class SpoiltRelay(Relay):
    """A relay to an agent on this host, without faults until a test asks for some; for one thread, in a `with`.

    Bits that are flipped are drawn from `seed`. Connections through it are broken by `cut`, held back by `delay_s`.

    Args:
        endpoint: of the agent, `tcp://127.0.0.1:5555`.
        seed: of what is drawn.

    Attributes:
        endpoint: where loaders are to connect.
        mbit: how fast each direction of each connection is, Mbit/s; may be changed.
        struck: how many messages have been spoilt so far.

    Example:
        >>> with SpoiltRelay(agent.endpoint) as relay:
        ...     loader = OffloadingDataLoader(dataset, agent=relay.address("pictures"))
        ...     relay.strike("drop", 3)
    """

    def __init__(self, endpoint: str, seed: int = 0) -> None:
        self.mbit: float | None = None
        self.struck = 0
        self._draw = random.Random(seed)
        self._flowing = threading.Event()
        self._flowing.set()
        self._strikes: dict[bool, deque[Strike]] = {True: deque(), False: deque()}
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        super().__init__((host, int(port)), 0.0, MBIT)
        self.endpoint = f"tcp://127.0.0.1:{self.port}"

    def address(self, export: str) -> str:
        """Return the address at which a loader finds an export (`name` or `name/folder`)."""
        return f"{self.endpoint}/{export}"

    def stall(self) -> None:
        """Pass nothing on; connections stay open, and new ones are taken and say nothing."""
        self._flowing.clear()

    def go_on(self) -> None:
        """Undo `stall`; what has been sent meanwhile comes."""
        self._flowing.set()

    def strike(self, what: Strike, count: int = 1, to_agent: bool = False) -> None:
        """Spoil the next messages of any connection.

        Args:
            what: fault of each message.
            count: number of messages.
            to_agent: True for messages to the agent, False for those from it.
        """
        self._strikes[to_agent].extend([what] * count)

    def calm(self) -> None:
        """Undo all that has been asked for and has not happened."""
        self.delay_s, self.mbit = 0.0, None
        for waiting in self._strikes.values():
            waiting.clear()
        self.go_on()

    def close(self) -> None:
        """Break all connections, and wait until every thread has ended."""
        self.calm()
        super().close()

    def __enter__(self) -> SpoiltRelay:
        return self

    def passing(self, to_target: bool) -> Passing:
        """See `Relay.passing`."""
        return _Direction(self, to_target).passed

    def held_up(self, nbytes: int) -> None:
        """Wait as long as that many bytes take now. Called by a direction."""
        if self.mbit is not None:
            time.sleep(nbytes * 8 / (self.mbit * 1e6))
        self._flowing.wait()

    def next_strike(self, to_agent: bool) -> Strike | None:
        """Return the fault of the message that passes now. Called by a direction."""
        try:
            found = self._strikes[to_agent].popleft()
        except IndexError:
            return None
        self.struck += 1
        return found

    def flipped(self, body: bytes) -> bytes:
        """Some bytes with one bit changed; none where there are none."""
        if not body:
            return body
        changed = bytearray(body)
        changed[self._draw.randrange(len(body))] ^= 1 << self._draw.randrange(8)
        return bytes(changed)


class _Direction:
    """Takes the stream of one direction apart, and spoils what is to be spoilt."""

    def __init__(self, relay: SpoiltRelay, to_agent: bool) -> None:
        self._relay = relay
        self._to_agent = to_agent
        self._rest = b""
        self._greeting_nbytes = GREETING_NBYTES
        """Number of bytes missing of the greeting. Each end sends its part bit by bit, and waits for the other's."""
        self._frames: list[tuple[bytes, bytes]] = []
        """Head and body of each frame of the message that has begun."""
        self._after: list[bytes] = []
        """A message that is to come after the next one."""

    def passed(self, chunk: bytes) -> list[bytes]:
        self._relay.held_up(len(chunk))
        self._rest += chunk
        greeting = self._taken(min(len(self._rest), self._greeting_nbytes))
        self._greeting_nbytes -= len(greeting)
        found = [greeting] if greeting else []
        while (head_nbytes := self._complete()) is not None:
            head, (flags, *size) = self._rest[:head_nbytes], self._rest[:head_nbytes]
            frame = self._taken(head_nbytes + int.from_bytes(size, "big"))
            if flags & COMMAND:
                found.append(frame)
                continue
            self._frames.append((head, frame[head_nbytes:]))
            if not flags & MORE:
                message, self._frames = self._frames, []
                found += self._spoilt(message)
                if END in found:
                    break
        return found

    def _taken(self, nbytes: int) -> bytes:
        taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return taken

    def _complete(self) -> int | None:
        """Return the length of the next frame's head in bytes; None if the frame is not complete."""
        if not self._rest:
            return None
        head_nbytes = 9 if self._rest[0] & LONG else 2
        head = self._rest[:head_nbytes]
        if len(head) < head_nbytes or len(self._rest) < head_nbytes + int.from_bytes(head[1:], "big"):
            return None
        return head_nbytes

    def _spoilt(self, message: list[tuple[bytes, bytes]]) -> list[bytes]:
        """Return the chunks to pass on for a message."""
        what = self._relay.next_strike(self._to_agent)
        at = {"flip": len(message) - 1, "flip header": 0}.get(what or "")
        if at is not None:
            head, body = message[at]
            message[at] = head, self._relay.flipped(body)
        if what == "flip size":
            head, body = message[0]
            message[0] = head[:1] + self._relay.flipped(head[1:]), body
        whole = b"".join(head + body for head, body in message)
        if what == "truncate":
            return [whole[: len(whole) // 2], END]
        if what == "reorder" and not self._after:
            self._after = [whole]
            return []
        after, self._after = self._after, []
        return {"drop": [], "double": [whole, whole]}.get(what or "", [whole]) + after
