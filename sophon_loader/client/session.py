"""What a loader worker holds: one connection, and the requests on it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sophon_loader.client.address import Address
from sophon_loader.client.asking import in_messages, key_nbytes, messages_of
from sophon_loader.client.connection import Connection, is_corrupt
from sophon_loader.client.header_questions import HeaderQuestions
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.requests import Requests
from sophon_loader.client.wanted import Ask, BatchId, Instruction, RegisterAgain, Renew, Reply, Say, Wanted
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import (
    AgentUnreachable,
    CorruptMessage,
    MalformedMessage,
    SophonError,
    VersionMismatch,
    WireError,
)
from sophon_loader.host.system import now_s
from sophon_loader.logs import log_line
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.failures import error_of
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.messages import (
    Failed,
    Failure,
    Headers,
    Message,
    Ping,
    Pong,
    Refused,
    Register,
    Sample,
)

log = logging.getLogger(__name__)
MAX_TOLD = 20
"""Messages that cannot be used of which the log tells; the report counts them all."""
_WAIT_S = 0.1
"""How long to wait for a message before looking at the time-outs again."""


@dataclass(frozen=True)
class Terms:
    """What the main process has agreed on with the agent, for all workers.

    Args:
        address: where the agent listens, and what of which export is meant.
        options: limits and time-outs.
        instance: the agent's, as it said in its Welcome.
        registrations: one per source, see `pipeline/registration.py`.
        keep_info: per source, whether an op at the loader may look at an image's `info`.
        seed: of the run.
        allowed: names of the encodings that the agent may answer in, see `encodings.catalogue.usable`.
        files_here: the agent is this host's own and has no link to pace: what would cross as the file it is, is read
            here instead.
        roster: what the user wrote, where that names agents that come and go; "" else.
        known: per source, how many ops of its pipeline the agent runs; -1 where its random numbers could be others, so
            that it is not asked by the pipeline. () for whatever is wanted.
        by_programs: whether the agent is asked by programs for some source, since they go further than what it knows
            of the pipeline.
    """

    address: Address
    options: OffloadOptions
    instance: str
    registrations: tuple[bytes, ...]
    keep_info: tuple[bool, ...]
    seed: Seed
    allowed: tuple[str, ...]
    files_here: bool = False
    roster: str = ""
    known: tuple[int, ...] = ()
    by_programs: bool = False

    @property
    def may_leave(self) -> bool:
        """Whether it is no fault when the agent closes its connection: a roster says who is there."""
        return bool(self.roster)


class Session:
    """Fetches batches of samples; one per process, used by one thread.

    A batch gets exactly one reply per sample. Others may be wanted meanwhile, as look-ahead.

    Args:
        terms: agreed on with the agent.
        beside: a session of this process with another agent of the same fleet, see `Link`.
        folder: what all keys begin with, and the agent's own folder takes the place of; None for the agent's own.

    Attributes:
        connection: with the agent.
        waited_s: seconds so far for which there was no reply to work on.
        starved_s: those of them in which more could have been on its way, had more been wanted.
        answers: samples so far that came, waited for or not.
        fresh: replies so far that came while they were waited for, and not while this process did something else.
        net_s: seconds that those spent on their way, all together: neither queued nor worked on at the agent.
        queued_s: seconds that those waited at the agent for a worker or a reader, all together.
        shortest_net_s: the shortest time that one was on its way; inf before there was one.
        corrupt: messages so far that were damaged on their way, in either direction.
        malformed: messages so far that break the protocol.
        gave_up_s: when the agent was given up last, by the clock of `now_s`; 0 if it never was.
        stopping: whether the agent has said that it takes no more requests, because it ends.
        asks_beside: whether it is asked something else than samples, which it may refuse for the moment.
        header_questions: those that are waited for.

    Example:
        >>> session.keep([batch])
        >>> session.want(batch, wanted)
        >>> replies = [session.next(batch) for _ in range(session.missing(batch))]
    """

    def __init__(self, terms: Terms, beside: Session | None = None, folder: str | None = None) -> None:
        self.terms = terms
        self._allowed = frozenset(terms.allowed)
        self._digests = [content_hash(registration) for registration in terms.registrations]
        shared: Connection | None = None if beside is None else beside.connection
        self.connection: Connection = Connection(terms.address, terms.options.window, terms.options, shared)
        self._folder = terms.address.folder if folder is None else folder
        self._reconnects = self._part_nbytes = 0
        known, by_programs = terms.known or None, terms.by_programs
        self._requests = Requests(terms.options, terms.instance, now_s(), known, by_programs=by_programs)
        self.header_questions = HeaderQuestions()
        self.gave_up_s = 0.0
        self.waited_s = self.starved_s = 0.0
        self.answers = self.fresh = 0
        self.net_s = 0.0
        self.queued_s = 0.0
        self.shortest_net_s = math.inf
        self.corrupt = self.malformed = 0
        self.stopping = False
        self.asks_beside = False
        self._agains = itertools.count()

    @property
    def received_nbytes(self) -> int:
        """Bytes received so far, headers included."""
        return self.connection.received_nbytes

    @property
    def gone(self) -> bool:
        """Whether the agent has been given up, until `trust` says otherwise."""
        return self._requests.gone

    @property
    def lost_s(self) -> float:
        """For how long the agent has been waited for in vain, s, all together."""
        return self._requests.patience.lost_s

    def key(self, wanted: Wanted) -> str:
        """What the agent calls a sample's file."""
        address, folder = self.terms.address, self._folder
        return wanted.key if folder == address.folder else address.key(wanted.key[len(folder) :].lstrip("/"))

    @property
    def lanes(self) -> list[Session]:
        """As of a `Fleet`: itself."""
        return [self]

    @property
    def answered(self) -> Session:
        """As of a `Fleet`: itself."""
        return self

    def trust(self, *, gone: bool, left_s: float, agent: int = 0) -> None:
        """Say how much to expect of the agent from now on.

        Args:
            gone: whether to ask it for nothing.
            left_s: for how long it may be waited for in vain; inf where nothing can be had without it.
            agent: 0, as of a `Fleet`.
        """
        if gone != self._requests.gone:
            facts = {"agent": self.terms.address, **({"reason": "found gone before"} if gone else {})}
            log.warning(log_line("agent given up" if gone else "agent answers again", **facts))
        self.stopping = self.stopping and gone
        self._requests.trust(gone=gone, left_s=left_s)

    @property
    def retries(self) -> int:
        """Samples asked for again so far."""
        return self._requests.retries

    def knows(self, batch: BatchId) -> bool:
        """Whether a batch has been asked for."""
        return self._requests.knows(batch)

    @property
    def wants_more(self) -> bool:
        """Whether another batch should be wanted as look-ahead."""
        return self._requests.wants_more

    @property
    def starved(self) -> bool:
        """Whether more could be on its way if more were wanted."""
        return self._requests.starved

    @property
    def why(self) -> str:
        """Why the agent was given up last; "" if it never was."""
        return self._requests.patience.why

    @property
    def unanswered(self) -> int:
        """Samples wanted so far that have no reply yet, of dropped batches too if they are on their way."""
        return self._requests.unanswered

    def want(self, batch: BatchId, wanted: Sequence[Wanted], positions: Iterable[int] | None = None) -> None:
        """Ask for a batch; to be called again when its turn has come, if it was asked for as look-ahead.

        Args:
            batch: its id.
            wanted: its samples, in order; not looked at if the batch is known.
            positions: see `Requests.want`.
        """
        self._do(self._requests.want(batch, wanted, now_s(), positions=positions))

    def missing(self, batch: BatchId) -> int:
        """How many replies of a batch `next` has yet to give."""
        return self._requests.missing(batch)

    def keep(self, batches: Iterable[BatchId]) -> None:
        """Forget all other batches."""
        self._requests.drop(keep=batches)

    def next(self, batch: BatchId, position: int | None = None) -> Reply:
        """A reply of a batch; waits for it.

        Args:
            batch: its id.
            position: of the sample in the batch, from 0; None for the reply that comes first.
        """
        looked_s = now_s()
        while (reply := self._requests.ready(batch, position)) is None:
            # What has already arrived comes before any decision about silence.
            received = self._receive(0) or self._wait()
            if received is not None:
                self._take(*received)
            self.look(now_s() - looked_s, self._in_part() if received is None else 0)
            looked_s = now_s()
        if reply.sample is None:
            # The agent is not left waiting while this process works on its own files.
            for _ in range(self.terms.options.window):
                if (received := self._receive(0)) is None:
                    break
                self._take(*received)
        return reply

    def ready(self, batch: BatchId, position: int | None = None) -> Reply | None:
        """A reply of a batch that has come; None where `next` would wait."""
        return self._requests.ready(batch, position)

    def withdraw(self) -> list[tuple[BatchId, Reply]]:
        """See `Requests.withdraw`."""
        return self._requests.withdraw()

    @property
    def owed(self) -> int:
        """See `Requests.owed`."""
        return self._requests.owed

    def give_back(self, count: int, may: Callable[[Wanted], bool]) -> list[tuple[BatchId, Reply]]:
        """See `Requests.give_back`."""
        return self._requests.give_back(count, may)

    def leave(self, why: str, *, in_order: bool = False) -> None:
        """Give the agent up.

        Args:
            why: what was got instead of samples.
            in_order: whether the agent was to go, which is nothing to warn of.
        """
        self._requests.give_up(why)
        self._note_gone(logging.INFO if in_order else logging.WARNING)

    def take(self, *, fresh: bool) -> None:
        """Take a message that has come, if one has.

        Args:
            fresh: whether it was waited for.
        """
        self._see_connection()
        received = self._receive(0)
        if received is not None:
            if fresh:
                self._note_fresh(received[0])
            self._take(*received)

    def again(self, wanted: Wanted, epoch: int) -> tuple[Sample, Payload]:
        """What the agent makes of one sample; waits for it.

        By the same connection as all others: where one address stands for several agents, a new connection may lead to
        another of them.

        Args:
            wanted: the sample.
            epoch: of its random numbers.

        Raises:
            SophonError: it does not come.
        """
        batch = BatchId(-1, epoch, next(self._agains))
        self._do(self._requests.want(batch, [replace(wanted, here=False)], now_s()))
        reply = self.next(batch)
        if reply.failed is not None:
            raise error_of(reply.failed.failure, f"{reply.failed.text} (agent {self.terms.address})")
        if reply.sample is None:
            why = reply.unusable or reply.why
            raise AgentUnreachable(f"agent {self.terms.address} must answer, got nothing to use: {why}")
        return reply.sample, reply.payload

    def instance(self) -> str:
        """The word that tells the agent at the other end from others, which may share its address; "" if it is silent
        for `dead_after_s`. What else comes meanwhile is kept.
        """
        end_s = now_s() + self.terms.options.dead_after_s
        with contextlib.suppress(SophonError):  # of no use in any other way
            self.connection.send(Ping())
            while (left_s := end_s - now_s()) > 0:
                if isinstance(heard := self.hear(left_s), Pong):
                    return heard.instance
        return ""

    def hear(self, timeout_s: float) -> Message | None:
        """The next message, which has its effect here, too; None after `timeout_s`, or if it cannot be used."""
        received = self._receive(timeout_s)
        if received is None:
            return None
        self._take(*received)
        return received[0]

    @property
    def takes_programs(self) -> bool:
        """True while the agent lives and is asked by programs."""
        return self._requests.by_programs and not self.gone

    def ask_headers(self, wanted: Sequence[Wanted]) -> None:
        """Ask for the headers of samples' files.

        Args:
            wanted: the samples, at most `MAX_HEADERS`, whatever is wanted of them.
        """
        if not self.takes_programs:
            return
        asked = [(one.sample, self.key(one)) for one in wanted]
        with contextlib.suppress(AgentUnreachable):  # the next request for a sample deals with that
            for some in in_messages(asked, lambda one: key_nbytes(one[1])):
                samples, keys = zip(*some, strict=True)
                self.connection.send(self.header_questions.ask(self.terms.address.export, samples, keys))

    @property
    def awaits_headers(self) -> bool:
        """Whether headers that were asked for may still come."""
        return self.header_questions.waiting and not self.gone

    def await_headers(self, timeout_s: float) -> None:
        """Wait for all headers that were asked for; later ones are learnt when they arrive.

        Args:
            timeout_s: how long at most.
        """
        end_s = now_s() + timeout_s
        while self.awaits_headers:
            left_s = max(0.0, end_s - now_s())
            if self.hear(min(left_s, _WAIT_S)) is None and not left_s:  # messages that lie here need no time
                break
        self.header_questions.give_up()

    def _in_part(self) -> int:
        """Bytes that have come since this was asked last, of a message that is not whole."""
        before, connection = self._part_nbytes, self.connection
        self._part_nbytes = connection.arrived_nbytes() - connection.received_nbytes
        return self._part_nbytes - before

    def look(self, waited_s: float, nbytes: int | None = None) -> None:
        """See what the time that has passed without a reply means.

        Args:
            waited_s: since that was done last, or since the wait began.
            nbytes: that have come without making a message whole; None to find that out.
        """
        was_gone = self.gone
        self._do(self._requests.tick(now_s(), waited_s, self._in_part() if nbytes is None else nbytes))
        if self.gone and not was_gone:
            self._note_gone()

    def _note_gone(self, level: int = logging.WARNING) -> None:
        self.gave_up_s = now_s()
        log.log(level, log_line("agent given up", agent=self.terms.address, reason=self._requests.patience.why))

    def _note_fresh(self, message: Message) -> None:
        """Count what the way of a reply took that has just come."""
        if isinstance(message, Sample) and (asked_s := self._requests.asked_s(message.id)) is not None:
            self.fresh += 1
            net_s = max(0.0, now_s() - asked_s - message.queued_s - message.read_s - message.work_s)
            self.net_s += net_s
            self.queued_s += message.queued_s
            self.shortest_net_s = min(self.shortest_net_s, net_s)

    def _receive(self, timeout_s: float) -> tuple[Message, Payload] | None:
        """The next message; None after `timeout_s`, or if it cannot be used."""
        try:
            return self.connection.receive(timeout_s)
        except VersionMismatch as error:
            self._give_up(error)
            return None
        except WireError as error:
            self._do_without(error)
            return None

    def _do_without(self, error: WireError) -> None:
        """Have what a message should have brought another way."""
        damaged = isinstance(error, CorruptMessage)
        if damaged:
            self.corrupt += 1
        else:
            self.malformed += 1
        if self.corrupt + self.malformed <= MAX_TOLD:
            log.warning(log_line("message unusable", agent=self.terms.address, reason=error))
        self._do(self._requests.unusable(error.request, str(error), now_s(), damaged=damaged))

    def _take(self, message: Message, payload: Payload) -> None:
        if is_corrupt(message):
            self._do_without(CorruptMessage(f"the agent says that it received a damaged message: {message}"))
            return
        if isinstance(message, Failed) and not message.ids:
            self._refused(message)
            return
        if isinstance(message, Sample) and message.encoding not in self._allowed:
            error = MalformedMessage(
                f"an agent must answer in an allowed encoding, one of {sorted(self._allowed)}, got "
                f"{reprlib.repr(message.encoding)} from {self.terms.address}"
            )
            error.request = message.id
            self._do_without(error)
            return
        if isinstance(message, Refused) and message.failure == Failure.VERSION:
            self.header_questions.give_up()
            self._do(self._requests.leave_programs(now_s()))
            return
        if isinstance(message, Headers):
            self.header_questions.answered(message)
            return
        if isinstance(message, Failed) and self.header_questions.refused(message):
            return
        self.answers += isinstance(message, Sample)
        self.stopping |= isinstance(message, Failed) and message.failure == Failure.STOPPING
        self._do(self._requests.receive(message, payload, now_s()))

    def _refused(self, failed: Failed) -> None:
        """A message of ours was refused."""
        if failed.failure == Failure.BAD_PIPELINE and failed.digest in self._digests:
            self._requests.refused(self._digests.index(failed.digest), now_s())
        if self.asks_beside and failed.failure in (Failure.BUSY, Failure.STOPPING):
            return
        if failed.digest:
            return  # a pipeline could not be registered again: the answer to its samples decides
        self._give_up(error_of(failed.failure, f"{failed.text} (agent {self.terms.address})"))

    def _give_up(self, error: SophonError) -> None:
        """The agent is of no use.

        Raises:
            SophonError: `error`, if nothing can be had without the agent.
        """
        if math.isinf(self._requests.patience.left_s):
            raise error
        self.leave(f"got {type(error).__name__}: {error}")

    def _wait(self) -> tuple[Message, Payload] | None:
        started_s = now_s()
        self._see_connection()
        starved = self._requests.starved
        received = self._receive(_WAIT_S)
        waited_s = now_s() - started_s
        self.waited_s += waited_s
        self.starved_s += waited_s if starved else 0.0
        if received is not None:
            self._note_fresh(received[0])
        return received

    def _see_connection(self) -> None:
        if self.connection.reconnects != self._reconnects:
            self._reconnects = self.connection.reconnects
            self._do(self._requests.reconnected(now_s()))

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            # A queue that pings to a dead agent have filled: what does not fit is lost, and `tick` deals with that.
            with contextlib.suppress(AgentUnreachable):
                self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Ask):
            for message in messages_of(self.terms, self._digests[instruction.source], instruction, self.key):
                self.connection.send(message)
        elif isinstance(instruction, Renew):
            self.connection.renew()  # and `_wait` says so
        elif isinstance(instruction, RegisterAgain):
            source = instruction.source
            self.connection.send(Register(self._digests[source]), self.terms.registrations[source])
        elif isinstance(instruction, Say):
            self.connection.send(instruction.message)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
