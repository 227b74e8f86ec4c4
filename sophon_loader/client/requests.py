"""Which samples are asked for, again, or given up: events in, instructions out. No sockets, no clock.

Batches are wanted in the order in which they will be delivered: the current one, then the look-ahead. As many samples
are unanswered at a time as the way to the agent takes (`window.py`), so neither end queues without bound, and the wire
stays busy across the borders of batches. Replies that nobody waits for (doubled, late, of a dropped batch) are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.wanted import Ask, BatchId, Instruction, RegisterAgain, Reply, Say, Wanted
from sophon_loader.client.window import Mark, Window
from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import Failed, Failure, Message, Ping, Pong, Sample

PAUSE_S = 0.1
"""How long to leave an agent alone that has said it is busy."""
MAX_RESENDS = 3
"""How often to ask again, each time after twice as long, an agent that lives and answers nothing."""
MAX_DAMAGED = 3
"""How often to ask again at once for a sample whose answers are damaged on their way."""
LOST_S = 0.5
"""Takes the place of `resend_after_s` once a message has come of which nobody can say what it was the answer to."""


@dataclass
class _Request:
    batch: BatchId
    position: int
    wanted: Wanted
    again: bool = False
    """Whether it has been asked for before."""
    damaged: int = 0
    """How many of its answers were."""


class Requests:
    """The unanswered samples of one loader worker at one agent.

    `want` and `drop` are called by the worker between messages, `receive` for every message that arrives, `tick`
    whenever it is about to wait; each returns instructions to carry out in order. `ready` yields what is there.

    Args:
        options: the window and the time-outs.
        instance: the agent's, as it said when it was greeted.
        now_s: time on the clock that all other methods are given, s.
        files_here: what is wanted as a file is not asked for.
        gone: begin as if the agent had been given up just now.

    Attributes:
        gone: whether the agent has been given up, until it answers again.
        retries: samples asked for again so far.

    Example:
        >>> requests = Requests(OffloadOptions(), "agent-1", now_s=0.0)
        >>> [ask] = requests.want(batch, wanted, now_s=0.0)
        >>> requests.receive(answer, payload, now_s=0.2)
        []
        >>> reply = requests.ready(batch)
    """

    def __init__(
        self, options: OffloadOptions, instance: str, now_s: float, *, files_here: bool = False, gone: bool = False
    ) -> None:
        self._options = options
        self._files_here = files_here
        self._instance = instance
        self._window = Window(options.window, options.window_nbytes)
        """How many samples may be unanswered."""
        self._limit = options.window
        """The same by the agent's word: fewer than in the options after it said that it was busy."""
        self._next_id = 0
        self._requests: dict[int, _Request] = {}
        """All that have no reply yet, by request number, in the order in which they were wanted."""
        self._queue: deque[int] = deque()
        """Numbers of those that are still to be asked for."""
        self._asked: dict[int, Mark] = {}
        """The unanswered ones, and when they were asked for; those of dropped batches fill the window, too."""
        self._ready: dict[BatchId, deque[Reply]] = {}
        """Replies that nobody has taken yet, of every batch that is wanted."""
        self._held_nbytes = 0
        """Of their payloads."""
        self._heartbeat_s = min(options.heartbeat_s, options.dead_after_s / 2)
        """Silence after which the agent is pinged, s."""
        self._heard_s = self._pinged_s = now_s - (self._heartbeat_s if gone else 0.0)
        """When the agent was heard, and when it was pinged, for the last time, s."""
        self._doubted_s: float | None = now_s - options.dead_after_s if gone else None
        """When it was first pinged since it was last heard, s; None if it has not been."""
        self._progress_s = now_s
        """When a sample was answered or the first one asked for, s: the time of `resend_after_s` runs from there."""
        self._pause_until_s = now_s
        """Nothing is asked for before, s, because the agent said that it was busy."""
        self._resends = 0
        """How often all was asked for again since the last answer."""
        self._lost = False
        """Whether an answer has come since that is known to be lost, and not which."""
        self.gone = gone
        self.retries = 0

    def asked_s(self, number: int) -> float | None:
        """When an unanswered request was sent; None for one that is not waited for."""
        mark = self._asked.get(number)
        return None if mark is None else mark.asked_s

    def want(self, batch: BatchId, wanted: Sequence[Wanted], now_s: float) -> list[Instruction]:
        """Ask for a batch, unless it has been asked for already (as look-ahead).

        Args:
            batch: its id.
            wanted: its samples, in order; not looked at if the batch is known.
            now_s: the time, s.
        """
        if not self.gone:
            self._heard_s = now_s  # the loader may have been busy; the agent's silence counts from here
            self._doubted_s = None
        if batch not in self._ready:
            self._ready[batch] = deque()
            for position, one in enumerate(wanted):
                if self._files_here and one.is_file:
                    self._ready[batch].append(Reply(one, position))
                    continue
                self._next_id += 1
                self._requests[self._next_id] = _Request(batch, position, one)
                self._queue.append(self._next_id)
        return self._fill(now_s)

    def knows(self, batch: BatchId) -> bool:
        """Whether a batch has been asked for."""
        return batch in self._ready

    @property
    def wants_more(self) -> bool:
        """Whether another batch should be wanted. Half a window waits behind the one that is unanswered, because many
        replies may come before anybody looks again; further ones would be chosen earlier than they need be.
        """
        return len(self._asked) + len(self._queue) < 1.5 * self._samples

    @property
    def starved(self) -> bool:
        """Whether more could come if more were wanted: everything is asked for, there is room in the window, and the
        replies on their way wait for none but the way itself.
        """
        return bool(self._asked) and not self._queue and len(self._asked) < self._samples and not self._window.queues

    @property
    def _samples(self) -> int:
        """How many may be unanswered now."""
        return min(self._limit, self._window.samples(self._held_nbytes))

    def missing(self, batch: BatchId) -> int:
        """How many replies of a batch `ready` has yet to give."""
        return len(self._ready[batch]) + sum(request.batch == batch for request in self._requests.values())

    def drop(self, keep: Iterable[BatchId]) -> None:
        """Forget every batch that is not in `keep`; answers on their way are ignored when they come."""
        kept = set(keep)
        for batch in [b for b in self._ready if b not in kept]:
            self._held_nbytes -= sum(len(reply.payload) for reply in self._ready.pop(batch))
        for number in [n for n, r in self._requests.items() if r.batch not in kept]:
            del self._requests[number]
        self._queue = deque(n for n in self._queue if n in self._requests)

    def ready(self, batch: BatchId) -> Reply | None:
        """The next reply of a batch, in order of arrival; None when there is none yet."""
        replies = self._ready[batch]
        if not replies:
            return None
        self._held_nbytes -= len(replies[0].payload)
        return replies.popleft()

    def receive(self, message: Message, payload: Payload, now_s: float) -> list[Instruction]:
        """A message has come from the agent.

        Args:
            message: what it says.
            payload: of a sample; b"" for other kinds.
            now_s: the time, s.
        """
        self._heard_s, self._doubted_s = now_s, None
        self.gone = False
        if isinstance(message, Sample):
            if (mark := self._asked.get(message.id)) is not None:
                self._window.answered(mark, len(payload), message.queued_s, now_s)
            self._answer(message.id, now_s, sample=message, payload=payload)
        elif isinstance(message, Failed):
            return self._failed(message, now_s)
        elif isinstance(message, Pong) and message.instance != self._instance:
            self._instance = message.instance
            self._ask_again(now_s)
        return self._fill(now_s)

    def unusable(self, number: int | None, why: str, now_s: float, *, damaged: bool) -> list[Instruction]:
        """A message has come that cannot be used: its sample is asked for again, or must be had another way.

        Args:
            number: of the request that it answers; None where that is not known.
            why: it cannot be used.
            now_s: the time, s.
            damaged: whether that happened on its way, so that another one may come whole.
        """
        if number is None:
            self._lost = True
            return self._fill(now_s)
        self._heard_s, self._doubted_s, self.gone = now_s, None, False
        request = self._requests.get(number)
        if not damaged or request is None or request.damaged == MAX_DAMAGED:
            self._answer(number, now_s, unusable=why)
        elif number in self._asked:
            request.damaged += 1
            self._requeue([number])
        return self._fill(now_s)

    def tick(self, now_s: float) -> list[Instruction]:
        """Time has passed: ping a silent agent, give a dead one up, ask again for what got lost."""
        options, heartbeat_s = self._options, self._heartbeat_s
        if not self._asked and not self._queue:
            self._heard_s = self._progress_s = now_s
            return []
        said: list[Instruction] = []
        if now_s - max(self._heard_s, self._pinged_s) >= heartbeat_s:
            self._pinged_s = now_s
            self._doubted_s = self._doubted_s or now_s
            said.append(Say(Ping()))
        # Silence counts from the first ping: before that, the loader itself may have been busy with a slow op.
        if self._doubted_s is not None and now_s - self._doubted_s >= options.dead_after_s - heartbeat_s:
            self._give_up()
        elif self._asked and now_s - self._progress_s >= self._patience_s * 2**self._resends:
            if self._resends == MAX_RESENDS:
                self._give_up()
            else:
                self._resends += 1
                self._ask_again(now_s)
        return said + self._fill(now_s)

    @property
    def _patience_s(self) -> float:
        """How long no answer may come before all is asked for again the first time, s."""
        return min(LOST_S, self._options.resend_after_s) if self._lost else self._options.resend_after_s

    def _give_up(self) -> None:
        """Nobody is there: everything asked for and queued is answered with nothing."""
        self.gone = True
        for number in [*self._asked, *self._queue]:
            self._finish(number)
        self._asked.clear()
        self._queue.clear()

    def _answer(self, number: int, now_s: float, **found: object) -> None:
        mark = self._asked.pop(number, None)
        self._progress_s = now_s
        self._limit = min(self._options.window, self._limit + 1)
        self._resends = 0
        self._finish(number, turnaround_s=0.0 if mark is None else now_s - mark.asked_s, **found)

    def _finish(self, number: int, **found: object) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            reply = Reply(request.wanted, request.position, **found)  # type: ignore[arg-type]
            self._held_nbytes += len(reply.payload)
            self._ready[request.batch].append(reply)

    def _failed(self, failed: Failed, now_s: float) -> list[Instruction]:
        for number in failed.ids:
            self._asked.pop(number, None)  # also those of a dropped batch: they take no room in the window any more
        mine = [n for n in failed.ids if n in self._requests]
        if failed.failure == Failure.UNKNOWN_PIPELINE and mine:
            self._requeue(mine)
            sources = {self._requests[n].wanted.source for n in mine}
            return [*(RegisterAgain(source) for source in sorted(sources)), *self._fill(now_s)]
        if failed.failure in (Failure.BUSY, Failure.STOPPING):
            # Try again with less at a time; `tick` asks when the agent has answered others or come back.
            self._limit = max(1, self._samples // 2)
            self._pause_until_s = now_s + PAUSE_S
            self._requeue(mine)
            return []
        for number in mine:
            self._answer(number, now_s, failed=failed)
        return self._fill(now_s)

    def _ask_again(self, now_s: float) -> None:
        self._progress_s, self._lost = now_s, False
        self._requeue([n for n in self._asked if n in self._requests])
        self._asked.clear()

    def _requeue(self, numbers: list[int]) -> None:
        self.retries += len(numbers)
        for number in numbers:
            self._asked.pop(number, None)
            self._requests[number].again = True
        self._queue.extendleft(reversed(numbers))

    def _fill(self, now_s: float) -> list[Instruction]:
        """Ask for queued samples while the window is open, as few messages as batches and sources allow: a window that
        has been full is filled up again when a quarter of it is empty.
        """
        if not self._asked:
            self._progress_s = now_s
        if now_s < self._pause_until_s:
            return []
        window = self._samples
        room = window - len(self._asked)
        if self._asked and room < min(window // 4, len(self._queue)):
            return []
        asks: list[Ask] = []
        while self._queue and len(self._asked) < window and not self.gone:
            number = self._queue.popleft()
            request = self._requests.get(number)
            if request is None:
                continue
            self._asked[number] = self._window.asked(len(self._asked), now_s, again=request.again)
            if not asks or (asks[-1].batch, asks[-1].source) != (request.batch, request.wanted.source):
                asks.append(Ask(request.batch, request.wanted.source, []))
            asks[-1].items.append((number, request.wanted))
        return list(asks)
