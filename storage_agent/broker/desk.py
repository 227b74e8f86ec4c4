"""What the agent makes of a loader's message: greet, register, admit, refuse.

Pure: frames, the time and the load in, instructions out. No socket, no clock, no process.
"""

from __future__ import annotations

import reprlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sophon_loader import __version__
from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES
from sophon_loader.errors import MalformedMessage, VersionMismatch, WireError
from sophon_loader.wire.failures import failure_of
from sophon_loader.wire.frames import check_frames, content_hash, unpack_request
from sophon_loader.wire.limits import MAX_HEADERS, MAX_KEYS, MAX_REGISTERING, MAX_REGISTRATION_NBYTES
from sophon_loader.wire.messages import (
    CHEAPEST,
    AskHeaders,
    AskListing,
    AskStatus,
    ExportQuestion,
    Failed,
    Failure,
    Fetch,
    FetchPrograms,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Register,
)
from sophon_loader.wire.version import common_version
from storage_agent.broker.instructions import (
    Build,
    Greet,
    Instruction,
    Log,
    LookUp,
    Queue,
    Read,
    Refuse,
    Tell,
    TellStatus,
)
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import FetchHeader, Job
from storage_agent.jobs.registrations import Registrations

ACTIVE_S = 0.5
"""A connection that has asked for work within so many seconds has its share of the agent's cores; whoever pauses for
longer (a training step, a checkpoint) leaves its share to others."""


@dataclass(frozen=True)
class Load:
    """How busy the agent is when a message comes.

    Args:
        room: jobs that workers of programs would take at once.
        building: pipelines that wait for a worker.
        upkeep_s: CPU seconds that a sample lately cost apart from reading, ops and encoding.
        cores: that workers may use.
        per_worker: the same for each of them, all at work.
        op_room: jobs that workers of named ops would take at once.

    Example:
        >>> Load(room=2, building=0, upkeep_s=0.0001).cores
        1.0
    """

    room: int
    building: int
    upkeep_s: float
    cores: float = 1.0
    per_worker: float = 1.0
    op_room: int = 0


class Desk:
    """Decides about the messages of loaders, in the order in which they come.

    Args:
        instance: a word that no other run of an agent has.
        exports: their names, in alphabetical order.
        encodings: those that can be made here.
        admission: counts what each client has asked for.
        pipelines: those that have been registered; shared with the staff.

    Example:
        >>> desk = Desk("1", ["photos"], ["file"], Admission(8, 8), Registrations())
        >>> desk.receive(b"loader", [pack(Ping())], Load(room=2, building=0, upkeep_s=0.0), now_s=0.0)
        [Tell(client=b'loader', message=Pong(instance='1'))]
    """

    def __init__(
        self,
        instance: str,
        exports: Sequence[str],
        encodings: Sequence[str],
        admission: Admission[Job],
        pipelines: Registrations,
    ) -> None:
        self._instance = instance
        self._exports = list(exports)
        self._encodings = list(encodings)
        self._admission = admission
        self._pipelines = pipelines
        self._loaders: set[bytes] = set()
        self._asked_s: OrderedDict[bytes, float] = OrderedDict()  # when clients asked last, the newest at the end
        self._stopping = False

    @property
    def loaders(self) -> int:
        """Connections of loaders that have not been closed."""
        return len(self._loaders)

    def is_loader(self, client: bytes) -> bool:
        """Whether a connection is a loader's, and not that of somebody who asks for the status."""
        return client in self._loaders

    def stop(self) -> None:
        """Take no more requests."""
        self._stopping = True

    def receive(
        self, client: bytes, frames: Sequence[bytes], load: Load, *, now_s: float, exports: Sequence[str] | None = None
    ) -> list[Instruction]:
        """What to do about a message.

        Args:
            client: ZeroMQ routing id of the connection.
            frames: of the message.
            load: how busy the agent is.
            now_s: the time, by this host's monotonic clock, in seconds.
            exports: those that the client may see; None for all. The others are not there for it.
        """
        if exports is None:
            exports = self._exports
        try:
            if not 1 <= len(frames) <= 2:
                raise MalformedMessage(f"a message must have one or two frames, got {len(frames)}")
            message = unpack_request(frames[0])
            check_frames(message, frames[0], frames[1] if len(frames) == 2 else None)
        except VersionMismatch as error:
            return [Refuse(client, Refused(Failure.VERSION, str(error)))]
        except WireError as error:
            return [Refuse(client, Failed(failure_of(error), str(error)))]
        if isinstance(message, Fetch | FetchPrograms | Register | ExportQuestion):
            self._loaders.add(client)  # workers, and who comes back to an agent that was started anew, do not say Hello
        if isinstance(message, Fetch | FetchPrograms):
            return self._fetch(client, message, load, now_s, exports, len(frames[0]))
        if isinstance(message, Register):
            return self._register(client, message, frames[1], load)
        return self._answer(client, message, exports, len(frames[0]))

    def gone(self, client: bytes) -> int:
        """A connection has been closed: what it has waiting is not done; how many requests have no answer."""
        self._asked_s.pop(client, None)
        unanswered = self._admission.outstanding_of(client)
        self._admission.forget(client)
        self._loaders.discard(client)
        return unanswered

    def _answer(self, client: bytes, message: Message, exports: Sequence[str], nbytes: int) -> list[Instruction]:
        if isinstance(message, Hello):
            return self._greet(client, message, exports)
        if isinstance(message, Ping):
            return [Tell(client, Pong(self._instance))]
        if isinstance(message, AskStatus):
            return [TellStatus(client, exports)]
        if isinstance(message, ExportQuestion):
            return self._look_up(client, message, exports, nbytes)
        text = f"message must be one that a loader sends, got {type(message).__name__}"
        return [Refuse(client, Failed(Failure.MALFORMED, text))]

    def _greet(self, client: bytes, hello: Hello, exports: Sequence[str]) -> list[Instruction]:
        try:
            version = common_version(hello.versions, hello.software, f"sophon-agent {__version__}")
        except VersionMismatch as error:
            return [Refuse(client, Refused(Failure.VERSION, str(error)))]
        self._loaders.add(client)
        return [Greet(client, version, exports), Log("loader joined", client, details={"software": hello.software})]

    def _register(self, client: bytes, message: Register, registration: bytes, load: Load) -> list[Instruction]:
        digest = message.digest
        if len(registration) > MAX_REGISTRATION_NBYTES or content_hash(registration) != digest:
            text = (
                f"pipeline must hash to its digest and have at most {MAX_REGISTRATION_NBYTES} bytes, got "
                f"{len(registration)} bytes under {reprlib.repr(digest)}"
            )
            return [Refuse(client, Failed(Failure.BAD_PIPELINE, text, digest=digest))]
        if load.building >= MAX_REGISTERING and not self._stopping:
            text = f"at most {MAX_REGISTERING} pipelines may wait to be built, got as many; ask again later"
            return [Refuse(client, Failed(Failure.BUSY, text, digest=digest))]
        if refusal := self._not_admitted(client, 1):
            return [Refuse(client, Failed(*refusal, digest=digest))]
        self._pipelines.keep(client, digest, registration)
        return [Build(client, digest, registration)]

    def _look_up(
        self, client: bytes, question: ExportQuestion, exports: Sequence[str], nbytes: int
    ) -> list[Instruction]:
        refusal = _not_answerable(question, exports) or self._not_admitted(client, 1, nbytes)
        if refusal is None:
            return [LookUp(client, question)]
        return [Refuse(client, Failed(*refusal, [question.id] if isinstance(question, AskHeaders) else []))]

    def _fetch(
        self,
        client: bytes,
        fetch: Fetch | FetchPrograms,
        load: Load,
        now_s: float,
        exports: Sequence[str],
        nbytes: int,
    ) -> list[Instruction]:
        if refusal := self._fetch_refused(client, fetch, exports, nbytes):
            return [Refuse(client, Failed(*refusal, [item.id for item in fetch.items], fetch.digest))]
        header = FetchHeader(
            client=client,
            export=fetch.export,
            digest=fetch.digest,
            seed=fetch.seed,
            epoch=fetch.epoch,
            keep_info=fetch.keep_info,
            dry=fetch.dry,
            allowed=[name for name in (*self._encodings, INFO_CLASSES, ANY_PART) if name in fetch.allowed],
            received_s=now_s,
            upkeep_s=load.upkeep_s,
            cores=load.cores / self._active(client, now_s, fetch),
            per_worker=load.per_worker,
            prices=fetch.prices,
            has_programs=isinstance(fetch, FetchPrograms),
            pixels_by=fetch.pixels_by if isinstance(fetch, FetchPrograms) else "",
        )
        files: list[Job] = []
        work: list[Job] = []
        for item in fetch.items:
            job = Job(header, item)
            is_file = item.cut == 0 and item.encoding == "file"
            (files if is_file or job.is_outdated(load.per_worker) else work).append(job)
        space = self._admission.space(client, with_ops=not header.has_programs)
        space += load.room if header.has_programs else load.op_room
        done: list[Instruction] = []
        if files:
            done.append(Read(files))
        if work and space:
            done.append(Queue(work[:space]))
        if len(work) > space:
            note = f"the agent is busy: {self._admission.max_queued} samples are waiting for a worker"
            done.append(Read(work[space:], note))
        return done

    def _active(self, client: bytes, now_s: float, fetch: Fetch | FetchPrograms) -> int:
        """How many connections have the workers' cores to themselves, this one among them if it asks for work."""
        if any(item.cut or item.encoding != "file" for item in fetch.items):
            self._asked_s[client] = now_s
            self._asked_s.move_to_end(client)
        while self._asked_s and next(iter(self._asked_s.values())) < now_s - ACTIVE_S:
            self._asked_s.popitem(last=False)
        return max(1, len(self._asked_s))

    def _fetch_refused(
        self, client: bytes, fetch: Fetch | FetchPrograms, exports: Sequence[str], nbytes: int
    ) -> tuple[str, str] | None:
        """The failure and why; None when the samples are admitted and counted."""
        if fetch.export not in exports:
            return _no_export(fetch.export, exports)
        leaves_choice = any(item.encoding == CHEAPEST for item in fetch.items)
        asks_for_work = any(item.cut or item.encoding != "file" for item in fetch.items)
        needs_pipeline = asks_for_work and isinstance(fetch, Fetch)
        if needs_pipeline and self._pipelines.get(fetch.digest) is None:
            return Failure.UNKNOWN_PIPELINE, f"pipeline must be registered, got {reprlib.repr(fetch.digest)}"
        if leaves_choice and len(fetch.prices) != 4:
            text = f"a request that leaves the choice to the agent must have four prices, got {fetch.prices}"
            return Failure.MALFORMED, text
        return self._not_admitted(client, len(fetch.items), nbytes)

    def _not_admitted(self, client: bytes, requests: int, nbytes: int = 0) -> tuple[str, str] | None:
        """The failure and why; None when the requests are admitted and counted."""
        if self._stopping:
            return Failure.STOPPING, "the agent is stopping"
        if not self._admission.admit(client, requests, nbytes):
            limit = self._admission.max_outstanding
            text = (
                f"a loader connection must have at most {limit} unanswered requests, and no more than its share of the "
                "agent's memory for them; ask again when some are answered"
            )
            return Failure.BUSY, text
        return None


def _not_answerable(question: ExportQuestion, exports: Sequence[str]) -> tuple[str, str] | None:
    """Why nobody can answer a question, however little there is to do: the failure and its text."""
    if question.export not in exports:
        return _no_export(question.export, exports)
    if isinstance(question, AskListing):
        return None
    most = MAX_HEADERS if isinstance(question, AskHeaders) else MAX_KEYS
    if len(question.keys) > most:
        return Failure.TOO_LONG, f"at most {most} keys may be asked for, got {len(question.keys)}"
    return None


def _no_export(name: str, exports: Sequence[str]) -> tuple[str, str]:
    return Failure.UNKNOWN_EXPORT, f"export must be one of {list(exports)}, got {reprlib.repr(name)}"
