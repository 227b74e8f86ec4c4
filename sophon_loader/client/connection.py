"""Questions to one agent, and its answers; not shared between threads."""

from __future__ import annotations

import time

from sophon_loader import __version__
from sophon_loader.client.address import Address
from sophon_loader.client.link import Link
from sophon_loader.client.listed import Listed
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.patience import MOST_AT_WORK_S, MOST_FLOWING_S, Advice, Silence, flows
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import (
    AgentError,
    AgentUnreachable,
    CorruptMessage,
    MalformedMessage,
    SampleOutsideExport,
    SophonError,
    UnknownExport,
    VersionMismatch,
)
from sophon_loader.host.endpoints import unknown_host
from sophon_loader.host.system import now_s
from sophon_loader.wire.failures import error_of
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.messages import (
    AskHeaders,
    AskListing,
    AskSizes,
    AskStatus,
    Failed,
    Failure,
    Fetch,
    Headers,
    Hello,
    Listing,
    Message,
    Ping,
    Pong,
    Refused,
    Register,
    Registered,
    Sample,
    Sizes,
    Status,
    Welcome,
)
from sophon_loader.wire.samples import SamplesAsked
from sophon_loader.wire.version import VERSIONS

MAX_DAMAGED = 5
"""How often a question is asked again because it, or its answer, was damaged on its way."""
DAMAGED_PAUSE_S = 0.02
"""Before that; each time it is twice as long."""
_LOOK_S = 0.5
"""How often whoever waits for an answer looks whether a part of it has come."""
_LEAST_LOOK_S = 0.05
"""In less, the bytes of a handshake would look like those of a message that comes."""


_ANSWERS: dict[type[Message], type[Message]] = {
    Hello: Welcome,
    Register: Registered,
    AskSizes: Sizes,
    AskHeaders: Headers,
    AskListing: Listing,
    Fetch: Sample,
}
"""What each question is answered with if all is well."""


class Connection(Link):
    """A link to an agent, and questions that are asked one at a time.

    Args:
        address: the agent.
        window: see `Link`.
        options: the time-outs; None for the defaults.
        beside: see `Link`.

    Example:
        >>> connection = Connection(Address.parse("tcp://fileserver:5555/photos"), window=1)
        >>> connection.greet(timeout_s=5.0).encodings
        ['file', 'pixels', 'array', 'webp', 'roi-jpeg']
        >>> file = connection.file("cat/1.jpg", timeout_s=5.0)
        >>> connection.close()
    """

    def __init__(
        self, address: Address, window: int, options: OffloadOptions | None = None, beside: Link | None = None
    ) -> None:
        super().__init__(address, window, options, beside)
        self._asked = 0
        self._question: tuple[Message, bytes | None] = (AskStatus(), None)
        self._asked_over = 0
        """`reconnects` when that was sent last."""
        self._damaged = 0
        """How often that was asked again, because it or its answer was damaged."""
        self._puts = 0
        """How often that was sent."""
        self._had: set[type[Message]] = set()
        """What has come in answer to questions so far."""
        self._silence = Silence(self._options)
        self._at_work = False  # on what was asked for, by the agent's last word
        self._looked_s = now_s()

    def greet(self, timeout_s: float) -> Welcome:
        """Shake hands, and see that the agent has the export.

        Raises:
            AgentUnreachable: nobody answered within `timeout_s`.
            KeyRefused: whoever listens did not let this loader in.
            VersionMismatch: no common protocol version.
            UnknownExport: the agent has no such export.
        """
        self.begin_to_greet()
        welcome = self.greeted(timeout_s)
        if welcome is None:
            raise self.silent(timeout_s)
        return welcome

    def begin_to_greet(self) -> None:
        """Say hello; `greeted` says what became of it."""
        self._begin(Hello(list(VERSIONS), f"sophon_loader {__version__}"), None)

    def greeted(self, wait_s: float) -> Welcome | None:
        """What the agent offers; None if it does not say so within `wait_s`.

        Raises:
            VersionMismatch: no common protocol version.
            UnknownExport: the agent has no such export.
        """
        received = self._answered(wait_s)
        if received is None:
            return None
        answer, _ = received
        if isinstance(answer, Refused):
            raise self._error(answer.failure, answer.text)
        if not isinstance(answer, Welcome):
            raise MalformedMessage(f"answer to Hello must be Welcome, got {answer} from {self.address}")
        if self.address.export not in answer.exports:
            raise UnknownExport(
                f"export must be one of {answer.exports}, got {self.address.export!r} in {self.address}; "
                "start the agent with --export NAME=FOLDER or correct the address"
            )
        return answer

    def register(self, registration: bytes, timeout_s: float) -> int:
        """Register a pipeline.

        Args:
            registration: see `pipeline/registration.py`.
            timeout_s: how long the answer may take.

        Returns:
            How many leading ops the agent can run.
        """
        self.begin_to_register(registration)
        ops = self.registered(timeout_s)
        if ops is None:
            raise self.silent(timeout_s)
        return ops

    def begin_to_register(self, registration: bytes) -> None:
        """Send a pipeline; `registered` says what became of it."""
        self._begin(Register(content_hash(registration)), registration)

    def registered(self, wait_s: float) -> int | None:
        """How many leading ops of the pipeline that was sent last the agent can run; None if it does not say so within
        `wait_s`."""
        received = self._answered(wait_s)
        if received is None:
            return None
        if not isinstance(received[0], Registered):
            raise self._unexpected(received[0])
        return received[0].ops

    def sizes(self, keys: list[str], timeout_s: float) -> Sizes:
        """The sizes of some files.

        Args:
            keys: their paths in the export.
            timeout_s: how long the answer may take.

        Returns:
            With a number of bytes per key, or `NO_FILE`, or `OUTSIDE` for a link that leaves the export.
        """
        answer, _ = self._ask(AskSizes(self.address.export, keys), None, timeout_s)
        if not isinstance(answer, Sizes):
            raise self._unexpected(answer)
        if len(answer.nbytes) != len(keys):
            raise MalformedMessage(
                f"Sizes.nbytes must have one entry for each of {len(keys)} keys, got {len(answer.nbytes)} from "
                f"{self.address}"
            )
        return answer

    def file(self, key: str, timeout_s: float) -> bytes:
        """The bytes of one file.

        Args:
            key: its path in the export.
            timeout_s: how long it may take, if the agent does not say that it is at work on it.

        Raises:
            SampleError: it cannot be had.
        """
        self.begin_file(key)
        latest_s = now_s() + MOST_AT_WORK_S
        while (file := self.fetched(timeout_s)) is None:
            if not self._at_work or now_s() > latest_s:
                raise self.silent(timeout_s)
        return file

    def begin_file(self, key: str) -> None:
        """Ask for a file; `fetched` gives it."""
        self._asked += 1
        self._begin(Fetch.of_files(self.address.export, {self._asked: key}), None)

    def fetched(self, wait_s: float) -> bytes | None:
        """The file that was asked for last; None if it does not come within `wait_s`.

        Raises:
            SampleError: it cannot be had.
        """
        received = self._fetched(wait_s)
        if received is None:
            return None
        answer, payload = received
        if (answer.cut, answer.encoding) != (0, "file"):
            raise self._unexpected(answer)
        return bytes(payload)

    def _fetched(self, wait_s: float) -> tuple[Sample, Payload] | None:
        """What has come in answer to the newest request; None if nothing has within `wait_s`."""
        end_s = now_s() + wait_s
        while (received := self._answered(max(0.0, end_s - now_s()))) is not None and _is_late(
            received[0], self._asked
        ):
            pass
        if received is None:
            return None
        answer, payload = received
        if not isinstance(answer, Sample):
            raise self._unexpected(answer)
        return answer, payload

    def listing(self, timeout_s: float) -> Listed:
        """The classes of the address's folder, and their files, in ImageFolder's order."""
        return self._listed(self.address.folder, timeout_s)

    def samples(self, member: str, image: str, timeout_s: float) -> Listed:
        """The folders of the address's folder, and their samples, as `wire/samples.py` says.

        Args:
            member: whose contents are wanted.
            image: the member that is the picture; "" for the first of the usual ones.
            timeout_s: how long the answer may take.
        """
        asked = SamplesAsked(self.address.folder, member, image)
        try:
            return self._listed(asked.prefix, timeout_s)
        except SampleOutsideExport as error:
            if not asked.is_unknown(str(error)):
                raise
            what = "samples by the name of their picture" if image else "samples of several files"
            raise VersionMismatch(
                f"agent must list {what}, got one of an older release at {self.address}; update it"
            ) from None

    def _listed(self, prefix: str, timeout_s: float) -> Listed:
        answer, payload = self._ask(AskListing(self.address.export, prefix), None, timeout_s)
        if not isinstance(answer, Listing):
            raise self._unexpected(answer)
        return Listed(answer.classes, payload, self.address)

    def _ask(self, question: Message, payload: bytes | None, timeout_s: float) -> tuple[Message, Payload]:
        self._begin(question, payload)
        answer = self._answered(timeout_s)
        if answer is None:
            raise self.silent(timeout_s)
        return answer

    def _begin(self, question: Message, payload: bytes | None) -> None:
        if self._puts > 1 and type(question) is type(self._question[0]) and not isinstance(question, Fetch):
            self.renew()  # a second answer to the one before, which may still come, would look like one to this
        self._puts = 0
        self._question, self._damaged = (question, payload), 0
        self._looked_s, self._at_work = now_s(), False
        self._silence.heard()
        self._put()

    def _put(self) -> None:
        """Send the question."""
        self._puts += 1
        self.send(*self._question)
        self._asked_over = self.reconnects

    def _answered(self, wait_s: float) -> tuple[Message, Payload] | None:
        """What has come in answer to the question, which is asked again where it or its answer was damaged on its way,
        or the connection was made anew; None if nothing comes within `wait_s`, and for some minutes more where a part
        of it has.

        Raises:
            AgentUnreachable: an agent that has greeted says nothing at all for `dead_after_s`.
        """
        end_s = now_s() + wait_s
        latest_s = end_s + MOST_FLOWING_S
        while True:
            since_s, before = now_s(), self.arrived_nbytes()
            try:
                answer = self.receive(max(0.0, min(end_s - since_s, _LOOK_S)))
            except CorruptMessage as error:
                self._silence.heard()
                last = str(error)
            else:
                if answer is None:
                    took_s = now_s() - since_s
                    if took_s >= _LEAST_LOOK_S and flows(self.arrived_nbytes() - before, took_s):
                        end_s = min(end_s + took_s, latest_s)
                        self._silence.heard()
                    self._see_that_it_lives()
                    if self.reconnects != self._asked_over:
                        self._put()
                    if now_s() >= end_s:
                        return None
                    continue
                self._silence.heard()
                if isinstance(answer[0], Status):
                    self._at_work = answer[0].is_at_work
                if isinstance(answer[0], (Pong, Status)) or self._is_second(answer[0]):
                    continue
                if not is_corrupt(answer[0]):
                    self._had.add(type(answer[0]))
                    return answer
                last = f"{answer[0]}"
            if self._damaged == MAX_DAMAGED:
                raise CorruptMessage(
                    f"messages must arrive undamaged, got {1 + MAX_DAMAGED} damaged ones for one "
                    f"{type(self._question[0]).__name__} to {self.address}, the last: {last}; find what changes bytes "
                    "on the way to the agent and back (a proxy or a tunnel, for example)"
                )
            self._damaged += 1
            time.sleep(DAMAGED_PAUSE_S * 2**self._damaged)
            self._put()

    def _is_second(self, answer: Message) -> bool:
        """Whether this is one more answer to an earlier question, which was sent again since nobody knew whether it had
        arrived."""
        kind, asked = type(answer), type(self._question[0])
        return kind in self._had and kind in _ANSWERS.values() and kind is not _ANSWERS.get(asked)

    def _see_that_it_lives(self) -> None:
        """Ping an agent that has said nothing for a while, and do not wait for a dead one.

        Raises:
            AgentUnreachable: it has said nothing at all for `dead_after_s`.
        """
        before_s, self._looked_s = self._looked_s, now_s()
        advice = self._silence.waited(self._looked_s - before_s)
        if advice is Advice.PING:
            self.send(Ping())
            if isinstance(self._question[0], Fetch):
                self.send(AskStatus())
        elif advice is Advice.RENEW:
            self.renew()
            self.send(Ping())
        elif advice is Advice.GIVE_UP and not isinstance(self._question[0], Hello):  # which has a time-out of its own
            raise self.silent(self._options.dead_after_s)

    def silent(self, timeout_s: float) -> AgentError:
        """The error for an agent that has said nothing for so long."""
        self._watch()
        if unknown := unknown_host(self.address.endpoint):
            return AgentUnreachable(
                f"the agent's host must have a name that is known here, got {unknown}; correct the name in "
                f"{self.address}, or use the host's IP address"
            )
        return self._handshakes.error() or AgentUnreachable(
            f"an agent must answer at {self.address.endpoint}, got nothing within {timeout_s:g} s; see that "
            "`sophon-agent serve` runs there, bound to an address that this host can reach"
        )

    def _unexpected(self, answer: Message) -> SophonError:
        if isinstance(answer, Failed):
            return self._error(answer.failure, answer.text)
        return MalformedMessage(f"answer must fit the question, got {answer} from {self.address}")

    def _error(self, failure: str, text: str) -> SophonError:
        return error_of(failure, f"{text} (agent {self.address})")


def is_corrupt(answer: Message) -> bool:
    """Whether the agent says that a message came damaged; nobody knows which."""
    return isinstance(answer, Failed) and answer.failure == Failure.CORRUPT and not answer.ids


def _is_late(answer: Message, asked: int) -> bool:
    """Whether this answers a question that was given up."""
    if isinstance(answer, Sample):
        return answer.id != asked
    if isinstance(answer, Failed):
        return bool(answer.ids) and asked not in answer.ids
    return False
