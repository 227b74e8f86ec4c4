"""The broker: one thread that owns every socket, takes requests in and hands replies out.

    loaders <-- ROUTER -->  broker  <-- a channel each --> worker processes   ops
                              ^------------- notices ----- reader threads     files as they are

It never runs an op and never opens a file, so it answers within milliseconds whatever the others do.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import reprlib
import signal
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgpack
import zmq

from sophon_loader import __version__
from sophon_loader.encodings.catalogue import encoding_names, missing
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentError, MalformedMessage, MessageTooLong, VersionMismatch, WireError
from sophon_loader.host import cores_available
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import check_frames, content_hash, pack, unpack
from sophon_loader.wire.limits import MAX_HEADER_NBYTES
from sophon_loader.wire.messages import (
    AskListing,
    AskSizes,
    AskStatus,
    Failed,
    Failure,
    Fetch,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Register,
    Status,
    Welcome,
)
from sophon_loader.wire.version import common_version
from storage_agent import worker_protocol as protocol
from storage_agent.admission import Admission
from storage_agent.channel import Channel
from storage_agent.jobs import Answer, Job, answer_file, answer_listing, answer_sizes
from storage_agent.notices import Notices
from storage_agent.pacing import Pacer
from storage_agent.readers import Readers
from storage_agent.settings import Settings
from storage_agent.store import Store
from storage_agent.upkeep import Upkeep
from storage_agent.workers import Workers

MAX_PIPELINES = 256
MAX_REGISTRATION_NBYTES = (4 << 20) + (4 << 10)
"""As much as pipeline/ makes of one."""
MAX_REGISTRATIONS_NBYTES = 256 << 20
MAX_REGISTERING = 64
MAX_KEYS = 4096
"""Of one AskSizes."""
JOBS_PER_WORKER = 2
"""One being worked on and one on its way, so that a worker never waits for the broker."""
STUCK_S = 0.05
"""A job that waits at its worker for longer, behind a slow one, is given to an idle worker as well."""
MAX_EARLY_DEATHS = 3
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
"""As numbers: with pyzmq's enumerations a call takes longer than what it calls."""
MAX_PER_TURN = 64
"""Messages of one source that are handled before the others get their turn."""


@dataclass
class _Registration:
    client: bytes
    payload: bytes
    deaths: int = 0


@dataclass
class _Task:
    """A job at a worker; at two when it was `doubled`, and then the first answer counts."""

    job: Job
    doubled: bool = False
    answered: bool = False


@dataclass
class _Worker:
    """A worker, and what has been sent to it and not been answered, oldest first, and when it began on the first."""

    channel: Channel
    tasks: deque[_Task] = field(default_factory=deque)
    registrations: deque[_Registration] = field(default_factory=deque)
    ready: bool = False
    since_s: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether it can be given work: it is ready and has not hung up."""
        return self.ready and self.channel.fileno() >= 0

    @property
    def load(self) -> int:
        return len(self.tasks) + len(self.registrations)

    @property
    def waiting(self) -> _Task | None:
        """The task that waits behind another and that no other worker has."""
        last = self.tasks[-1] if len(self.tasks) > 1 else None
        return None if last is None or last.doubled else last


class Broker:
    """Serves until `stop` or a signal; `address` is where loaders connect."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store(settings.exports, settings.max_file_nbytes)
        self._instance = uuid.uuid4().hex
        self._started_s = time.monotonic()
        self._admission: Admission[Job] = Admission(settings.max_outstanding, settings.max_queued)
        self._pacer: Pacer[tuple[bytes, list[Payload]]] = Pacer(settings.limit_mbit)
        self._pipelines: OrderedDict[str, bytes] = OrderedDict()
        self._registering: deque[_Registration] = deque()
        self._encodings = encoding_names()
        self._staff: dict[int, _Worker] = {}
        self._upkeep = Upkeep()
        self._early_deaths = 0
        self._counts: Counter[str] = Counter()
        self._cpu_s = 0.0
        self._sent_nbytes = 0
        self._dropped = 0
        self._stopping = False
        self._open()

    def _open(self) -> None:
        self._context = zmq.Context()
        self._frontend = self._context.socket(zmq.ROUTER)
        self._frontend.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._frontend.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a loader that reconnects keeps its routing id
        self._frontend.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_HEADER_NBYTES)
        self._frontend.setsockopt(zmq.RCVHWM, 64)  # messages of one loader; its own socket keeps the others
        self._frontend.setsockopt(zmq.SNDHWM, 2 * self._settings.max_outstanding)
        self._frontend.setsockopt(zmq.LINGER, 2000)
        self._listen()
        self._poller = zmq.Poller()
        self._notices: Notices[Callable[[], None]] = Notices()
        self._readers = Readers(self._settings.readers)
        self._workers = Workers(self._settings, self._worker_ended)

    def _listen(self) -> None:
        endpoint = self._settings.bind
        if endpoint.startswith("tcp://") and endpoint.endswith(":0"):
            endpoint = endpoint[:-1] + "*"
        self._frontend.setsockopt(zmq.IPV6, endpoint.startswith("tcp://["))
        try:
            self._frontend.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise AgentError(
                f"bind must be an address of this host with a free port, got {self._settings.bind}: {error}"
            ) from error
        self.address = self._frontend.getsockopt_string(zmq.LAST_ENDPOINT)

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`; then finish what is in flight, within `drain_s`.

        Args:
            ready: called once loaders can connect.

        Raises:
            AgentError: workers cannot be started (an `--ops` module that fails to import, say).
        """
        try:
            with self._signals():
                for _ in range(self._settings.workers):
                    self._start_worker()
                ready()
                self._loop()
        finally:
            self.close()

    def stop(self) -> None:
        """Take no more requests; `run` returns when those in flight are answered."""
        self._stopping = True

    def _loop(self) -> None:
        self._poller.register(self._frontend, zmq.POLLIN)
        self._poller.register(self._notices, zmq.POLLIN)
        deadline_s: float | None = None
        while True:
            if self._stopping:
                deadline_s = deadline_s or time.monotonic() + self._settings.drain_s
                if self._idle or time.monotonic() > deadline_s:
                    return
            events = dict(self._poller.poll(self._timeout_ms(self._relieve())))
            for number, worker in self._staff.items():
                if event := events.get(worker.channel.fileno()):
                    self._attend(number, worker, event)
            if self._notices.fileno() in events:
                for notice in self._notices.take(MAX_PER_TURN):
                    notice()
            if self._frontend in events:
                self._receive_from_loaders()
            self._dispatch()
            self._send_due()

    @property
    def _idle(self) -> bool:
        return self._admission.outstanding == 0 and not len(self._pacer)

    def _timeout_ms(self, relief_s: float | None) -> int | None:
        waits = [self._pacer.wait_s(time.monotonic()), relief_s, 0.05 if self._stopping else None]
        return min((math.ceil(1000 * wait_s) for wait_s in waits if wait_s is not None), default=None)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {n: signal.signal(n, lambda *_: self.stop()) for n in (signal.SIGTERM, signal.SIGINT)}
        wakeup = signal.set_wakeup_fd(self._notices.writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- loaders ----------------------------------------------------------------------------------------------

    def _receive_from_loaders(self) -> None:
        for _ in range(MAX_PER_TURN):
            try:
                frames = self._frontend.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            self._from_loader(frames)

    def _from_loader(self, frames: list[bytes]) -> None:
        client = frames[0]
        try:
            if not 2 <= len(frames) <= 3:
                raise MalformedMessage(f"a message must have one or two frames, got {len(frames) - 1}")
            message = unpack(frames[1])
            check_frames(message, len(frames[2]) if len(frames) == 3 else None)
        except VersionMismatch as error:
            self._tell(client, Refused(Failure.VERSION, str(error)))
        except MessageTooLong as error:
            self._tell(client, Failed(Failure.TOO_LONG, str(error)))
        except WireError as error:
            self._tell(client, Failed(Failure.MALFORMED, str(error)))
        else:
            self._handle(client, message, frames[2] if len(frames) == 3 else b"")

    def _handle(self, client: bytes, message: Message, payload: bytes) -> None:
        if isinstance(message, Fetch):
            self._fetch(client, message)
        elif isinstance(message, Hello):
            self._tell(client, self._greet(message))
        elif isinstance(message, Register):
            self._register(client, message, payload)
        elif isinstance(message, Ping):
            self._tell(client, Pong(self._instance))
        elif isinstance(message, AskStatus):
            self._tell(client, Status(self._status()))
        elif isinstance(message, AskListing):
            self._ask(client, answer_listing, message.export, message.prefix)
        elif isinstance(message, AskSizes):
            self._ask(client, answer_sizes, message.export, message.keys)
        else:
            text = f"message must be one that a loader sends, got {type(message).__name__}"
            self._tell(client, Failed(Failure.MALFORMED, text))

    def _greet(self, hello: Hello) -> Welcome | Refused:
        try:
            version = common_version(hello.versions)
        except VersionMismatch as error:
            return Refused(Failure.VERSION, str(error))
        return Welcome(
            version=version,
            instance=self._instance,
            exports=self._store.names,
            encodings=list(self._encodings),
            software=dict(software()),
            cores=min(cores_available(), float(self._settings.workers)),
            max_outstanding=self._settings.max_outstanding,
        )

    def _register(self, client: bytes, message: Register, payload: bytes) -> None:
        if len(payload) > MAX_REGISTRATION_NBYTES or content_hash(payload) != message.digest:
            text = f"pipeline must hash to its digest and have at most {MAX_REGISTRATION_NBYTES} bytes"
            self._tell(client, Failed(Failure.BAD_PIPELINE, text, digest=message.digest))
            return
        if refusal := self._no_room(client, 1, waiting=len(self._registering)):
            self._tell(client, Failed(*refusal, digest=message.digest))
            return
        self._keep(message.digest, payload)
        self._registering.append(_Registration(client, payload))

    def _keep(self, digest: str, registration: bytes) -> None:
        """Remember a pipeline, and forget the oldest beyond the limits."""
        self._pipelines.pop(digest, None)
        self._pipelines[digest] = registration
        nbytes = sum(map(len, self._pipelines.values()))
        while len(self._pipelines) > MAX_PIPELINES or nbytes > MAX_REGISTRATIONS_NBYTES:
            nbytes -= len(self._pipelines.popitem(last=False)[1])

    def _ask(self, client: bytes, function: Callable[..., Answer], export: str, what: str | list[str]) -> None:
        if isinstance(what, list) and len(what) > MAX_KEYS:
            self._tell(client, Failed(Failure.TOO_LONG, f"at most {MAX_KEYS} keys may be asked for, got {len(what)}"))
        elif refusal := self._no_room(client, 1):
            self._tell(client, Failed(*refusal))
        else:
            make = functools.partial(function, self._store, export, what)
            self._readers.submit(make, lambda answer: self._notices.put(lambda: self._told(client, *_frames(answer))))

    def _no_room(self, client: bytes, requests: int, waiting: int = 0) -> tuple[str, str] | None:
        """Count the requests of a client; else the failure and why."""
        if self._stopping:
            return Failure.STOPPING, "the agent is stopping"
        if waiting >= MAX_REGISTERING:
            return Failure.BUSY, f"{waiting} pipelines are waiting to be built"
        if not self._admission.admit(client, requests):
            limit = self._settings.max_outstanding
            return Failure.BUSY, f"one loader connection may have {limit} unanswered requests"
        return None

    def _fetch(self, client: bytes, fetch: Fetch) -> None:
        ids = [item.id for item in fetch.items]
        refusal = self._refusal(client, fetch)
        if refusal is not None:
            failure, text = refusal
            self._tell(client, Failed(failure, text, ids, fetch.digest))
            return
        now_s = time.monotonic()
        allowed = [name for name in self._encodings if name in fetch.allowed]
        for item in fetch.items:
            fields = (fetch.export, fetch.digest, fetch.seed, fetch.epoch, fetch.keep_info, fetch.dry, allowed)
            job = Job(client, *fields, received_s=now_s, upkeep_s=self._upkeep.per_sample_s, item=item)
            if item.cut == 0 and item.encoding == "file":
                self._read(job)
            elif self._admission.overloaded:
                self._read(job, f"{self._settings.max_queued} samples are waiting for a worker")
            else:
                self._admission.push(client, job)
                self._dispatch()  # at once: only what no worker has room for is waiting

    def _refusal(self, client: bytes, fetch: Fetch) -> tuple[str, str] | None:
        if fetch.export not in self._store.names:
            got = reprlib.repr(fetch.export)
            return Failure.UNKNOWN_EXPORT, f"export must be one of {self._store.names}, got {got}"
        if fetch.digest not in self._pipelines and any(item.cut or item.encoding != "file" for item in fetch.items):
            return Failure.UNKNOWN_PIPELINE, f"pipeline must be registered, got {reprlib.repr(fetch.digest)}"
        return self._no_room(client, len(fetch.items))

    def _read(self, job: Job, note: str = "") -> None:
        make = functools.partial(answer_file, self._store, job, note)
        self._readers.submit(
            make, lambda answer: self._notices.put(lambda: self._read_done(job.client, answer)), [job.item.id]
        )

    def _read_done(self, client: bytes, answer: Answer) -> None:
        self._upkeep.count(answer.cpu_s)
        self._answered(client, answer.kind, answer.cpu_s, *_frames(answer))

    # --- workers and reader threads ---------------------------------------------------------------------------

    def _start_worker(self) -> None:
        number, channel = self._workers.start()
        self._staff[number] = _Worker(channel)
        self._poller.register(channel, zmq.POLLIN)

    def _dispatch(self) -> None:
        """Give waiting work to the worker with least of it."""
        while self._registering or self._admission.queued:
            worker = min((w for w in self._staff.values() if w.usable), key=lambda w: w.load, default=None)
            if worker is None or worker.load >= JOBS_PER_WORKER:
                break
            if self._registering:
                registration = self._registering.popleft()
                worker.registrations.append(registration)
                self._order(worker, [protocol.REGISTER, registration.payload])
            elif (job := self._admission.pop()) is not None:
                self._give(worker, _Task(job))
        if self._stopping and not self._any_usable:
            while (job := self._admission.pop()) is not None:
                self._read(job, "the agent is stopping")

    def _give(self, worker: _Worker, task: _Task) -> None:
        if not worker.tasks:
            worker.since_s = time.monotonic()
        worker.tasks.append(task)
        job = task.job
        self._order(worker, [protocol.JOB, job.to_bytes(), self._pipelines.get(job.digest, b"")])

    def _relieve(self) -> float | None:
        """Give idle workers what waits behind a slow job; the seconds until there may be more of that to do."""
        idle = [worker for worker in self._staff.values() if worker.usable and not worker.load]
        if not idle:
            return None
        now_s, wait_s = time.monotonic(), None
        for worker in self._staff.values():
            task = worker.waiting
            if task is None:
                continue
            left_s = worker.since_s + STUCK_S - now_s
            if left_s > 0:
                wait_s = min(left_s, wait_s or STUCK_S)
            elif idle:
                task.doubled = True
                self._give(idle.pop(), task)
        return wait_s

    @property
    def _any_usable(self) -> bool:
        return any(worker.usable for worker in self._staff.values())

    def _order(self, worker: _Worker, frames: list[Payload]) -> None:
        with contextlib.suppress(OSError):  # it is gone; its thread will say so
            worker.channel.send(frames)
            if worker.channel.waiting:
                self._poller.register(worker.channel, zmq.POLLIN | zmq.POLLOUT)

    def _attend(self, number: int, worker: _Worker, event: int) -> None:
        """A worker's channel has something to read, or room for what waits, or has been closed."""
        if event & zmq.POLLOUT:
            with contextlib.suppress(OSError):  # it is gone; but it may have said something before
                worker.channel.flush()
            if not worker.channel.waiting:
                self._poller.register(worker.channel, zmq.POLLIN)
        try:
            for _ in range(MAX_PER_TURN):
                frames = worker.channel.receive()
                if frames is None:
                    return
                self._from_worker(worker, frames)
        except (EOFError, OSError):
            self._hang_up(worker)
            self._workers.kill(number)  # if it still lives; the thread that waits for its end tells us

    def _hang_up(self, worker: _Worker) -> None:
        if worker.channel.fileno() >= 0:
            self._poller.unregister(worker.channel)
            worker.channel.close()

    def _from_worker(self, worker: _Worker, frames: list[memoryview]) -> None:
        command = frames[0]
        if command == protocol.BROKEN:
            raise AgentError(f"workers must be able to load their ops: {bytes(frames[1]).decode()}")
        if command == protocol.READY:
            self._early_deaths = 0
            worker.ready = True
            return
        kind, cpu_s = msgpack.unpackb(frames[1])
        if command == protocol.ANSWER:
            self._upkeep.count(0.0)
            task = worker.tasks.popleft()
            worker.since_s = time.monotonic()
            if not task.answered:
                task.answered = True
                self._answered(task.job.client, kind, cpu_s, *frames[2:])
        else:
            self._told(worker.registrations.popleft().client, *frames[2:])

    def _told(self, client: bytes, *frames: Payload) -> None:
        self._admission.finish(client)
        self._reply(client, list(frames))

    def _answered(self, client: bytes, kind: str, cpu_s: float, *frames: Payload) -> None:
        self._counts[kind] += 1
        self._cpu_s += cpu_s
        self._told(client, *frames)

    def _worker_ended(self, number: int, exit_code: str) -> None:
        """Called by the thread that waited for it."""
        self._notices.put(lambda: self._replace(number, exit_code))

    def _replace(self, number: int, exit_code: str) -> None:
        """A worker has died: its jobs go out as files (one of them may have killed it), another starts."""
        worker = self._staff[number]
        self._workers.forget(number)
        if worker.channel.fileno() >= 0:
            self._attend(number, worker, zmq.POLLIN)  # its last words
        self._hang_up(worker)
        del self._staff[number]
        elsewhere = [id(task) for other in self._staff.values() for task in other.tasks]
        for task in worker.tasks:
            if not task.answered and id(task) not in elsewhere:
                task.answered = True
                self._read(task.job, f"the agent's worker died on this or its next sample (exit code {exit_code})")
        for registration in worker.registrations:
            self._register_again(registration, exit_code)
        if self._stopping:
            return
        if not worker.ready:
            self._early_deaths += 1
            if self._early_deaths >= MAX_EARLY_DEATHS:
                raise AgentError(f"workers must start, but {MAX_EARLY_DEATHS} ended at once (exit code {exit_code})")
        self._start_worker()

    def _register_again(self, registration: _Registration, exit_code: str) -> None:
        """Have another worker build it, unless two have died; the first may have died of something else."""
        registration.deaths += 1
        if registration.deaths < 2 and not self._stopping:
            self._registering.appendleft(registration)
            return
        text = f"two of the agent's workers died while they built this pipeline (exit code {exit_code})"
        self._admission.finish(registration.client)
        self._tell(
            registration.client,
            Failed(Failure.BAD_PIPELINE, text, digest=content_hash(registration.payload)),
        )

    # --- out --------------------------------------------------------------------------------------------------

    def _tell(self, client: bytes, message: Message) -> None:
        """Send a message of the broker's own at once, past paced samples: a loader waits for it as a sign of life."""
        self._send(client, [pack(message)])

    def _reply(self, client: bytes, frames: list[Payload]) -> None:
        self._pacer.put(sum(len(frame) for frame in frames), (client, frames))
        self._send_due()

    def _send_due(self) -> None:
        while (reply := self._pacer.due(time.monotonic())) is not None:
            self._send(*reply)

    def _send(self, client: bytes, frames: list[Payload]) -> None:
        try:
            self._frontend.send(client, _NOBLOCK | _SNDMORE)
            for frame in frames[:-1]:
                self._frontend.send(frame, _NOBLOCK | _SNDMORE)
            self._frontend.send(frames[-1], _NOBLOCK)
            self._sent_nbytes += sum(len(frame) for frame in frames)
        except zmq.ZMQError as error:
            # The loader is gone, or does not read what it asked for.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._dropped += 1

    def _status(self) -> dict[str, object]:
        return {
            "version": __version__,
            "instance": self._instance,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "exports": {name: self._store.root(name) for name in self._store.names},
            "workers": sum(worker.usable for worker in self._staff.values()),
            "worker_pids": self._workers.pids,
            "cores": cores_available(),
            "encodings": list(self._encodings),
            "encodings_missing": missing(),
            "software": dict(software()),
            "pipelines": len(self._pipelines),
            "clients": self._admission.clients,
            "queued": self._admission.queued,
            "outstanding": self._admission.outstanding,
            "answers": dict(self._counts),
            "sent_mb": round(self._sent_nbytes / 1e6, 3),
            "cpu_s": round(self._cpu_s, 3),
            "dropped_replies": self._dropped,
            "limit_mbit": self._settings.limit_mbit,
        }

    def close(self) -> None:
        """End threads and workers, flush what has been sent, free the address. Safe to call twice."""
        if self._context.closed:
            return
        if hasattr(self, "_workers"):
            for worker in self._staff.values():
                worker.channel.close()  # which ends it
            self._readers.stop()
            self._workers.stop(5.0, told=[number for number, worker in self._staff.items() if worker.ready])
            self._notices.close()
        self._context.destroy(linger=None)


def _frames(answer: Answer) -> list[Payload]:
    """[header, payload] of an answer from a thread."""
    return answer.frames()[1:]
