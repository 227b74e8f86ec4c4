"""An agent that loses, doubles, delays, refuses and dies, as a script says, for tests of a loader worker's side."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sophon_loader.client.wanted import Ask, BatchId, Instruction, RegisterAgain, Renew, Say, Wanted
from sophon_loader.wire.messages import Failed, Failure, Message, Pong, Registered
from tests.support.loaders import sample_message as sample

FATES: tuple[str, ...] = (
    "answer",
    "answer",
    "answer",
    "drop",
    "double",
    "late",
    "busy",
    "stopping",
    "missing",
    "restart",
    "die",
    "live",
    "flip",
    "flip header",
    "break",
)


class Spoilt(NamedTuple):
    """What arrives of an answer that cannot be used."""

    request: int | None
    damaged: bool


class LossyAgent:
    """Handles what it is asked as its script says, one entry per message; afterwards it is a good agent."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = deque(script)
        self.instance = 1
        self.alive = True
        self.pipelines: set[int] = {0, 1}
        self.outbox: deque[Message | Spoilt] = deque()
        self.late: deque[Message] = deque()
        self.failed: set[int] = set()

    def handle(self, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            fate = self.script.popleft() if self.script else "answer"
            if fate in ("die", "restart"):
                self.alive = fate == "restart"
                self.instance += 1
                self.pipelines.clear()
                self.outbox.clear()
            elif fate == "live" or not self.script:
                self.alive = True
            if self.alive and fate != "drop":
                self._handle(one, fate)

    def _handle(self, one: Instruction, fate: str) -> None:
        if isinstance(one, Say):
            self.outbox.append(Pong(str(self.instance)))
        elif isinstance(one, RegisterAgain):
            self.pipelines.add(one.source)
            self.outbox.append(Registered("digest", 3))
        elif isinstance(one, Renew):
            pass  # the connection was not what had died
        elif fate in ("busy", "stopping"):
            self.outbox.append(Failed(fate, "", ids_of(one)))
        elif one.source not in self.pipelines:
            self.outbox.append(Failed(Failure.UNKNOWN_PIPELINE, "", ids_of(one)))
        else:
            self._answer(ids_of(one), fate)

    def _answer(self, ids: Sequence[int], fate: str) -> None:
        for number in ids:
            if fate in ("flip", "flip header", "break"):
                self.outbox.append(Spoilt(None if fate == "flip header" else number, damaged=fate != "break"))
                continue
            answer: Message = sample(number)
            if fate == "missing":
                answer = Failed(Failure.MISSING, "", [number])
            self.late.append(answer) if fate == "late" else self.outbox.append(answer)
            if fate == "double":
                self.outbox.append(answer)

    def says(self) -> Message | Spoilt | None:
        """What arrives next at the loader, if anything does."""
        return self.outbox.popleft() if self.outbox else None

    def release(self) -> None:
        """What was held back goes out now."""
        self.outbox.extend(self.late)
        self.late.clear()


def ids_of(ask: Ask) -> list[int]:
    return [number for number, _ in ask.items]


def batches_of(sizes: Sequence[int]) -> list[tuple[BatchId, list[Wanted]]]:
    found = []
    for number, size in enumerate(sizes):
        want = [Wanted(i % 2, 100 * number + i, 1, "pixels", f"{number}/{i}") for i in range(size)]
        found.append((BatchId(1, 0, number), want))
    return found
