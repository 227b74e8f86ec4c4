"""What a loader worker holds: one connection, and the requests on it."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection, now_s
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.requests import Ask, BatchId, Instruction, RegisterAgain, Reply, Requests, Say, Wanted
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentUnreachable, MalformedMessage
from sophon_loader.wire.failures import error_of
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.limits import MAX_UINT
from sophon_loader.wire.messages import Failed, Fetch, Item, Message, Register, Sample

Want = Callable[[], Sequence[Wanted]]
LookAhead = Callable[[], tuple[BatchId, Sequence[Wanted]] | None]
_WAIT_S = 0.1
"""How long to wait for a message before looking at the time-outs again."""


@dataclass(frozen=True)
class Terms:
    """What the main process has agreed on with the agent, for all workers.

    Args:
        instance: the agent's, as it said in its Welcome.
        prefixes: per source, the folder of its root in the address's folder ("" for the folder itself).
        registrations: one per source, see `pipeline/registration.py`.
        keep_info: per source, whether an op at the loader may look at an image's `info`.
        seed: of the run.
        allowed: names of the encodings that the agent may answer in, see `encodings.catalogue.usable`.
        files_here: the agent is this host's own and has no link to pace: what would cross as the file it is, is read
            here instead.
    """

    address: Address
    options: OffloadOptions
    instance: str
    prefixes: tuple[str, ...]
    registrations: tuple[bytes, ...]
    keep_info: tuple[bool, ...]
    seed: int
    allowed: tuple[str, ...]
    files_here: bool = False

    def key(self, source: int, key: str) -> str:
        """A sample's key relative to the export, from the one relative to its source's root."""
        prefix = self.prefixes[source]
        return self.address.key(f"{prefix}/{key}" if prefix else key)


class Session:
    """Fetches batches of samples; one per process, used by one thread.

    `waited_s` adds up the seconds for which there was no reply to work on.

    Args:
        gone: the agent was silent lately; it is asked whether it is alive, and counts as gone until it answers.
    """

    def __init__(self, terms: Terms, *, gone: bool = False) -> None:
        self.terms = terms
        self._allowed = frozenset(terms.allowed)
        self._digests = [content_hash(registration) for registration in terms.registrations]
        self._connection = Connection(terms.address, terms.options.window)
        self._requests = Requests(terms.options, terms.instance, now_s(), files_here=terms.files_here, gone=gone)
        self.waited_s = 0.0

    @property
    def received_nbytes(self) -> int:
        """Bytes received so far, headers included."""
        return self._connection.received_nbytes

    @property
    def gone(self) -> bool:
        """Whether the agent has been given up, until it answers again."""
        return self._requests.gone

    @property
    def retries(self) -> int:
        """Samples asked for again so far."""
        return self._requests.retries

    def replies(self, batch: BatchId, want: Want, look_ahead: LookAhead | None) -> Generator[Reply, None, None]:
        """The batch's replies in order of arrival, while the batch behind it is being asked for.

        Every wanted sample gets exactly one reply. Closing the iterator early drops what is missing.

        Args:
            want: gives the samples of the batch; called only if it has not been asked for before.
            look_ahead: gives the batch that comes behind it and its samples, or None as long as that is not known;
                called before each reply until it gives one.
        """
        ahead: list[BatchId] = []
        self._requests.drop(keep=[batch])
        try:
            wanted = () if self._requests.knows(batch) else want()
            self._do(self._requests.want(batch, wanted, now_s()))
            for _ in range(self._requests.missing(batch)):
                if look_ahead is not None and not ahead and (found := look_ahead()) is not None:
                    ahead.append(found[0])
                    self._do(self._requests.want(*found, now_s()))
                yield self._next(batch)
        finally:
            self._requests.drop(keep=ahead)

    def _next(self, batch: BatchId) -> Reply:
        if self.terms.files_here:  # so that the agent is not left waiting while this process works on its own files
            while (received := self._connection.receive(0)) is not None:
                self._take(*received)
        while (reply := self._requests.ready(batch)) is None:
            # What has already arrived comes before any decision about silence.
            received = self._connection.receive(0) or self._wait()
            if received is None:
                continue
            self._take(*received)
        return reply

    def _take(self, message: Message, payload: Payload) -> None:
        if isinstance(message, Failed) and not message.ids:
            if message.digest:
                return  # a pipeline could not be registered again: the answer to its samples decides
            raise error_of(message.failure, f"{message.text} (agent {self.terms.address})")
        if isinstance(message, Sample) and message.encoding not in self._allowed:
            raise MalformedMessage(
                f"an agent must answer in an encoding that was allowed, one of {sorted(self._allowed)}, got "
                f"{reprlib.repr(message.encoding)} from {self.terms.address}"
            )
        self._do(self._requests.receive(message, payload, now_s()))

    def _wait(self) -> tuple[Message, Payload] | None:
        started_s = now_s()
        self._do(self._requests.tick(started_s))
        received = self._connection.receive(0 if self._requests.gone else _WAIT_S)
        self.waited_s += now_s() - started_s
        return received

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            # A queue that pings to a dead agent have filled: what does not fit is lost, and `tick` deals with that.
            with contextlib.suppress(AgentUnreachable):
                self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Ask):
            self._connection.send(self._fetch(instruction))
        elif isinstance(instruction, RegisterAgain):
            source = instruction.source
            self._connection.send(Register(self._digests[source]), self.terms.registrations[source])
        elif isinstance(instruction, Say):
            self._connection.send(instruction.message)

    def _fetch(self, ask: Ask) -> Fetch:
        terms = self.terms
        items = []
        for number in ask.ids:
            one = self._requests.wanted(number)
            key = terms.key(one.source, one.key)
            items.append(Item(number, one.sample, one.occurrence, one.cut, one.encoding, key))
        return Fetch(
            export=terms.address.export,
            digest=self._digests[ask.source],
            seed=terms.seed & MAX_UINT,  # as `op_seed` does: any int is a seed
            epoch=ask.batch.epoch & MAX_UINT,
            keep_info=terms.keep_info[ask.source],
            dry=False,
            allowed=list(terms.allowed),
            items=items,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
