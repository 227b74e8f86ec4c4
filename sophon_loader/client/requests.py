"""Which samples are asked for, again, or given up: events in, instructions out. No sockets, no clock.

Batches are wanted in the order in which they will be delivered: the current one, then the look-ahead. As many samples
are unanswered at a time as the way to the agent takes (`window.py`), so neither end queues without bound, and the wire
stays busy across the borders of batches. Replies that nobody waits for (doubled, late, of a dropped batch) are ignored.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sophon_loader.client.drawn_program import by_stages
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.patience import Advice, Patience
from sophon_loader.client.wanted import Ask, BatchId, Instruction, RegisterAgain, Renew, Reply, Request, Say, Wanted
from sophon_loader.client.window import Mark, RequestWindow
from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import AskStatus, Failed, Failure, Message, Ping, Pong, Sample, Status

PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
"""How long to ask an agent for nothing that has refused, and how long at most: twice as long with every refusal."""
MAX_REGISTRATIONS = 3
"""How often to register a pipeline again that the agent does not know even then."""
FILES_ONLY_S = 60.0
"""How long to ask for files alone where the agent will not have the pipeline."""
MAX_DAMAGED = 3
"""How often to ask again at once for a sample whose answers are damaged on their way."""


class Requests:
    """The unanswered samples of one loader worker at one agent.

    `want` and `drop` are called by the worker between messages, `receive` for every message that arrives, `tick`
    whenever it is about to wait; each returns instructions to carry out in order. `ready` yields what is there.

    Args:
        options: the window and the time-outs.
        instance: the agent's, as it said when it was greeted.
        known: per source, how many ops of its pipeline the agent runs; -1 where it is not to be asked by the pipeline.
            None for whatever is wanted.
        by_programs: whether the agent is asked by programs, where these go further than what it knows.
        now_s: time on the clock that all other methods are given, s.

    Attributes:
        gone: whether the agent has been given up, until `trust` says otherwise.
        patience: how long it is waited for.
        retries: samples asked for again so far.
        by_programs: whether the agent is asked by programs, until it turns out to know none.

    Example:
        >>> requests = Requests(OffloadOptions(), "agent-1", now_s=0.0)
        >>> [ask] = requests.want(batch, wanted, now_s=0.0)
        >>> requests.receive(answer, payload, now_s=0.2)
        []
        >>> reply = requests.ready(batch)
    """

    def __init__(
        self,
        options: OffloadOptions,
        instance: str,
        now_s: float,
        known: Sequence[int] | None = None,
        *,
        by_programs: bool = False,
    ) -> None:
        self._options = options
        self._known = known
        self.by_programs = by_programs
        self._instance = instance
        self._window = RequestWindow(options.window, options.window_nbytes)
        """How many samples may be unanswered."""
        self._limit = options.window
        """The same by the agent's word: fewer than in the options after it said that it was busy."""
        self._next_id = 0
        self._requests: dict[int, Request] = {}
        """All that have no reply yet, by request number, in the order in which they were wanted."""
        self._queue: deque[int] = deque()
        """Numbers of those that are still to be asked for."""
        self._asked: dict[int, Mark] = {}
        """The unanswered ones, and when they were asked for; those of dropped batches fill the window, too."""
        self._ready: dict[BatchId, dict[int, Reply]] = {}
        """Replies that nobody has taken yet, by position and in order of arrival, of every batch that is wanted."""
        self._held_nbytes = 0
        """Of their payloads."""
        self._pause_until_s = now_s
        """Nothing is asked for before, s, because the agent has refused."""
        self._refusals = 0
        """How often it has, since a sample came."""
        self._registered: dict[int, tuple[float, int]] = {}
        """Per source whose pipeline had been forgotten: when it was registered again, s, and how often in vain."""
        self._files_until_s: dict[int, float] = {}
        """Per source whose pipeline the agent will not have: until when it is asked for files alone, s."""
        self.patience = Patience(options)
        self.gone = False
        self.retries = 0

    def trust(self, *, gone: bool, left_s: float) -> None:
        """Say how much to expect of the agent from now on.

        Args:
            gone: whether it is not to be asked for anything.
            left_s: for how long it may be waited for in vain; inf where nothing can be had without it.
        """
        self.gone = gone
        self.patience.left_s = left_s
        if gone:
            self._answer_all_with_nothing()

    def asked_s(self, number: int) -> float | None:
        """When an unanswered request was sent; None for one that is not waited for."""
        mark = self._asked.get(number)
        return None if mark is None else mark.asked_s

    def want(
        self,
        batch: BatchId,
        wanted: Sequence[Wanted],
        now_s: float,
        positions: Iterable[int] | None = None,
    ) -> list[Instruction]:
        """Ask for a batch, unless it has been asked for already (as look-ahead), or for some more of its samples.

        Args:
            batch: its id.
            wanted: its samples, in order; not looked at if the batch is known.
            now_s: the time, s.
            positions: in the batch, of these samples, which are asked for even if it is known; None for all from 0 on.
        """
        if positions is not None or batch not in self._ready:
            self._ready.setdefault(batch, {})
            for position, one in zip(itertools.count() if positions is None else positions, wanted, strict=False):
                if one.here:
                    self._ready[batch][position] = Reply(one, position)
                    continue
                self._next_id += 1
                self._requests[self._next_id] = Request(batch, position, one)
                self._queue.append(self._next_id)
            if next(reversed(self._ready)) != batch:  # batches are asked for in turn
                waiting = [(n, self._requests[n].batch) for n in self._queue if n in self._requests]
                self._queue = deque(n for one in self._ready for n, its in waiting if its == one)
        if self.gone:
            self._answer_all_with_nothing()
        return self._fill(now_s)

    def knows(self, batch: BatchId) -> bool:
        """Whether a batch has been asked for."""
        return batch in self._ready

    @property
    def wants_more(self) -> bool:
        """Whether another batch should be wanted. Half a window waits behind the one that is unanswered, because many
        replies may come before anybody looks again; further ones would be chosen earlier than they need be.
        """
        return self.unanswered < 1.5 * self._samples

    @property
    def unanswered(self) -> int:
        """Samples that are asked for or queued."""
        return len(self._asked) + len(self._queue)

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
            self._held_nbytes -= sum(len(reply.payload) for reply in self._ready.pop(batch).values())
        for number in [n for n, r in self._requests.items() if r.batch not in kept]:
            del self._requests[number]
        self._queue = deque(n for n in self._queue if n in self._requests)

    def ready(self, batch: BatchId, position: int | None = None) -> Reply | None:
        """A reply of a batch, taken from those that have come; None when it is not there yet.

        Args:
            batch: its id.
            position: of the sample in the batch, from 0; None for the reply that came first.
        """
        replies = self._ready[batch]
        reply = replies.pop(next(iter(replies), 0) if position is None else position, None)
        if reply is not None:
            self._held_nbytes -= len(reply.payload)
        return reply

    def withdraw(self) -> list[tuple[BatchId, Reply]]:
        """Take the replies with nothing: another agent may be asked for these samples."""
        there = [(batch, reply) for batch, replies in self._ready.items() for reply in replies.values()]
        found = [(batch, reply) for batch, reply in there if reply.is_nothing]
        for batch, reply in found:
            del self._ready[batch][reply.position]
        return found

    @property
    def owed(self) -> int:
        """Samples that somebody still waits for."""
        return len(self._requests)

    def give_back(self, count: int, may: Callable[[Wanted], bool]) -> list[tuple[BatchId, Reply]]:
        """Take back the newest ones that are owed: another agent is asked for them. Answers that come are ignored.

        Args:
            count: how many, at most.
            may: whether another can be asked for it.
        """
        able = [number for number, one in self._requests.items() if may(one.wanted)]
        numbers = able[max(0, len(able) - count) :]
        found = [self._requests.pop(number) for number in numbers]
        self._queue = deque(number for number in self._queue if number in self._requests)
        return [(one.batch, Reply(one.wanted, one.position)) for one in found]

    def receive(self, message: Message, payload: Payload, now_s: float) -> list[Instruction]:
        """A message has come from the agent.

        Args:
            message: what it says.
            payload: of a sample; b"" for other kinds.
            now_s: the time, s.
        """
        self.patience.heard()
        if isinstance(message, Sample):
            if (mark := self._asked.get(message.id)) is not None:
                self._window.answered(mark, len(payload), message.queued_s, now_s)
            self._answer(message.id, now_s, sample=message, payload=payload)
        elif isinstance(message, Failed):
            return self._failed(message, now_s)
        elif isinstance(message, Status):
            self.patience.told(at_work=message.is_at_work)
        elif isinstance(message, Pong) and message.instance != self._instance:
            self._instance = message.instance
            self.patience.told(at_work=False)
            self._files_until_s.clear()
            self._ask_again()
            if self._refusals:
                self._pause(now_s)
            self._refusals += 1
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
            self.patience.lost()
            return self._fill(now_s)
        self.patience.heard()
        request = self._requests.get(number)
        if not damaged or request is None or request.damaged == MAX_DAMAGED:
            self._answer(number, now_s, unusable=why)
        elif number in self._asked:
            request.damaged += 1
            self._taken_back([number])
        return self._fill(now_s)

    def tick(self, now_s: float, waited_s: float, nbytes: int = 0) -> list[Instruction]:
        """A sample is waited for: ping a silent agent, ask again for what got lost, give up one that is of no use.

        Args:
            now_s: the time, s.
            waited_s: since the last tick, or since the wait began.
            nbytes: that have come meanwhile, parts of messages too.
        """
        if not self._asked and not self._queue:
            return []
        said: list[Instruction] = []
        advice = self.patience.waited(waited_s, nbytes)
        if advice is Advice.PING:
            said += [Say(Ping()), Say(AskStatus())]
        elif advice is Advice.RENEW:
            said += [Renew(), Say(Ping())]
        elif advice is Advice.ASK_AGAIN:
            said.append(Say(AskStatus()))
            self._ask_again()
        elif advice is Advice.GIVE_UP:
            self._leave()
        return said + self._fill(now_s)

    def reconnected(self, now_s: float) -> list[Instruction]:
        """The connection was broken and is there again: what was on its way, in either direction, may be lost. No sign
        of life: a host may take connections for a program that stands still.
        """
        self._pause_until_s = now_s
        self.patience.told(at_work=False)
        self._ask_again()
        return self._fill(now_s)

    def refused(self, source: int, now_s: float) -> None:
        """The agent will not have the pipeline of a source: offloading is a hint, so it is asked for files.

        Args:
            source: number of the folder.
            now_s: the time, s.
        """
        self._files_until_s[source] = now_s + FILES_ONLY_S
        self._registered.pop(source, None)

    def leave_programs(self, now_s: float) -> list[Instruction]:
        """The agent knows no programs: another release answers where the one that was greeted did.

        Args:
            now_s: the time, s.
        """
        if self.by_programs:
            self.by_programs = False
            self._ask_again()
        return self._fill(now_s)

    def give_up(self, why: str) -> None:
        """The agent is of no use.

        Args:
            why: what was got instead of samples.
        """
        self.patience.give_up(why)
        self._leave()

    def _leave(self) -> None:
        self.gone = True
        self._answer_all_with_nothing()

    def _answer_all_with_nothing(self) -> None:
        """Everything asked for and queued."""
        for number in [*self._asked, *self._queue]:
            self._finish(number, why=self.patience.why)
        self._asked.clear()
        self._queue.clear()

    def _answer(self, number: int, now_s: float, **found: object) -> None:
        mark = self._asked.pop(number, None)
        if mark is None and number not in self._requests:
            return  # doubled, late, of a dropped batch or of nobody: no progress
        turnaround_s = 0.0 if mark is None else now_s - mark.asked_s
        self.patience.progressed(turnaround_s)
        self._refusals = 0
        self._limit = min(self._options.window, self._limit + 1)
        self._finish(number, turnaround_s=turnaround_s, **found)

    def _finish(self, number: int, **found: object) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            if request.drawn is not None and isinstance(sample := found.get("sample"), Sample):
                found["sample"] = by_stages(sample, request.drawn)
            reply = Reply(request.wanted, request.position, **found)  # type: ignore[arg-type]
            self._held_nbytes += len(reply.payload)
            self._ready[request.batch][request.position] = reply

    def _failed(self, failed: Failed, now_s: float) -> list[Instruction]:
        if failed.failure in (Failure.UNKNOWN_PIPELINE, Failure.BAD_PIPELINE):
            bad = failed.failure == Failure.BAD_PIPELINE
            asked_s: dict[int, float] = {}
            for number, mark in self._taken_back(failed.ids):
                asked_s[self._requests[number].wanted.source] = mark.asked_s
            said = [one for source in sorted(asked_s) for one in self._forgotten(source, asked_s[source], now_s, bad)]
            return [*said, *self._fill(now_s)]
        if failed.failure in (Failure.BUSY, Failure.STOPPING):
            # Try again with less at a time; `tick` asks when the agent has answered others or come back.
            self._limit = max(1, self._samples // 2)
            self._taken_back(failed.ids)
            self._pause(now_s)
            return []
        for number in failed.ids:
            request = self._requests.get(number)
            if failed.failure == Failure.BAD_PROGRAM and request is not None and request.drawn is not None:
                self._ask_for_file(number, request)
            else:
                self._answer(number, now_s, failed=failed)
        return self._fill(now_s)

    def _ask_for_file(self, number: int, request: Request) -> None:
        """The file may be another one than the program was drawn for. An answer to the program that still comes is not
        to be taken for one to this, so it has a number of its own."""
        self._asked.pop(number, None)
        del self._requests[number]
        self._next_id += 1
        wanted = replace(request.wanted.as_file(), program_refused=True)
        self._requests[self._next_id] = Request(request.batch, request.position, wanted, again=True)
        self._queue.appendleft(self._next_id)

    def _forgotten(self, source: int, asked_s: float, now_s: float, bad: bool) -> list[Instruction]:
        """The agent says that it does not know a pipeline, or will not have it, to what was asked for at `asked_s`."""
        registered_s, times = self._registered.get(source, (-math.inf, 0))
        if asked_s < registered_s:
            return []  # it may know it by now
        if now_s < self._files_until_s.get(source, -math.inf):
            self._pause(now_s)
            return []
        if now_s - registered_s > FILES_ONLY_S:
            times = 0
        if bad or times == MAX_REGISTRATIONS:
            self.refused(source, now_s)
            return []
        if times:
            self._pause(now_s)
        self._registered[source] = (now_s, times + 1)
        return [RegisterAgain(source)]

    def _pause(self, now_s: float) -> None:
        if now_s >= self._pause_until_s:  # else this was asked before
            self._pause_until_s = now_s + min(MAX_PAUSE_S, PAUSE_S * 2**self._refusals)
            self._refusals += 1

    def _ask_again(self) -> None:
        self._taken_back(list(self._asked))
        self._asked.clear()

    def _taken_back(self, numbers: Iterable[int]) -> list[tuple[int, Mark]]:
        """Queue again what of these is unanswered, in front of the others. What is of a dropped batch takes no room in
        the window any more.
        """
        marks = [(number, self._asked.pop(number, None)) for number in numbers]
        found = [(number, mark) for number, mark in marks if mark is not None and number in self._requests]
        self.retries += len(found)
        for number, _ in found:
            self._requests[number].again = True
        self._queue.extendleft(number for number, _ in reversed(found))
        return found

    def _fill(self, now_s: float) -> list[Instruction]:
        """Ask for queued samples while the window is open, a message for each batch and source: a window that
        has been full is filled up again when a quarter of it is empty.
        """
        if now_s < self._pause_until_s:
            return []
        window = self._samples
        room = window - len(self._asked)
        if self._asked and room < min(window // 4, len(self._queue)):
            return []
        asks: dict[tuple[BatchId, int], Ask] = {}
        while self._queue and len(self._asked) < window and not self.gone:
            number = self._queue.popleft()
            request = self._requests.get(number)
            if request is None:
                continue
            self._asked[number] = self._window.asked(len(self._asked), now_s, again=request.again)
            batch, source = request.batch, request.wanted.source
            ask = asks.setdefault((batch, source), Ask(batch, source, []))
            to_ask = self._to_ask(request.wanted, now_s)
            request.drawn = to_ask.drawn
            ask.items.append((number, to_ask))
        return list(asks.values())

    def _to_ask(self, wanted: Wanted, now_s: float) -> Wanted:
        """What is asked for in place of what is wanted: by the program where that goes further than what the agent
        knows of the pipeline, else as far as it knows that."""
        if wanted.is_file:
            return wanted
        drawn, source = wanted.drawn, wanted.source
        known = wanted.cut if self._known is None else self._known[source]
        if drawn is not None:
            has_a_name = wanted.prices is not None or drawn.segment_of(wanted.cut) is not None
            if self.by_programs and known < drawn.furthest and has_a_name:
                return wanted
            wanted = replace(wanted, drawn=None)
        if known < 0 or now_s < self._files_until_s.get(source, -math.inf):
            return wanted.as_file()
        if wanted.cut > known:
            return replace(wanted, cut=known) if wanted.prices else wanted.as_file()
        return wanted
