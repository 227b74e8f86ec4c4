"""The broker: one thread that owns every socket, takes requests in and hands replies out.

    loaders <-- ROUTER -->  broker  <-- a channel each --> worker processes   ops
                              ^------------- notices ----- reader threads     files as they are

It moves bytes and carries out what `Desk` (loaders) and `Staff` (workers) decide. It never runs an op and never opens a
file, so it answers within milliseconds whatever the others do.
"""

from __future__ import annotations

import functools
import math
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgpack
import zmq

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentError
from sophon_loader.host.installed import torch_lacking
from sophon_loader.host.system import cores_available
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import unpack
from sophon_loader.wire.messages import AT_WORK, AskHeaders, Failed, Registered, Status, Welcome
from storage_agent.broker import instructions as do
from storage_agent.broker.desk import Desk, Load
from storage_agent.broker.notices import Notices, waking_on_signals
from storage_agent.broker.pools import Pools
from storage_agent.broker.tally import Tally
from storage_agent.clients.frontend import LOOK_S, Frontend
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.host.log import EventLog
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import Registrations
from storage_agent.jobs.upkeep import Upkeep
from storage_agent.reading.answers import Answer, answer_file, answer_question
from storage_agent.reading.read_ahead import Ahead
from storage_agent.reading.readers import Readers, ReaderTask
from storage_agent.stores import Exports
from storage_agent.workers import message_types
from storage_agent.workers.lines import Lines
from storage_agent.workers.processes import Workers

MAX_PER_TURN = 64
"""Messages of a worker, and notices of threads, that are handled before the others get their turn."""
MAX_REQUESTS_PER_TURN = 8
"""Messages of loaders, likewise. One takes up to 0.1 ms and may be meant to harm: while 64 were looked at, the samples
of others waited for 5 ms on their way to a worker, and again on their way back."""
STOP_S = 5.0
"""How long workers may take to end by themselves."""
STATUS_WAIT_S = 2.0
"""How long another thread waits for the loop to tell its status."""
_OF_OPS = ("torch", "torchvision")
"""Software that only named ops need."""
CORES_FOR_S = 1.0
"""How long what was found of this host's cores goes for: a quota may change at any time, and looking takes 0.1 ms."""
_STOPPING_LOOK_S = 0.05
"""While the agent stops, the loop looks this often whether all is done."""


class Broker:
    """Serves until `stop` or a signal.

    Args:
        settings: of the agent.
        exports: what the settings name, opened.

    Raises:
        AgentError: the address is taken, or is none.

    Example:
        >>> broker = Broker(settings, open_exports(settings))
        >>> broker.run(ready=lambda: print(broker.address))

    Attributes:
        address: where loaders connect.
        instance: what tells it from all other agents, earlier ones at its address too.
    """

    def __init__(self, settings: AgentSettings, exports: Exports) -> None:
        self._settings = settings
        self._exports = exports
        self._log = EventLog()
        self._frontend = Frontend(settings, self._log)
        self.address = self._frontend.address
        self.instance = uuid.uuid4().hex
        self._admission: Admission[Job] = Admission(settings.max_outstanding, settings.max_queued)
        self._pipelines = Registrations()
        self._desk = Desk(self.instance, exports.names, encoding_names(), self._admission, self._pipelines)
        most, why = settings.op_workers_at_most, settings.ops_lacking
        self._staff = Pools(self._admission, self._pipelines, settings.job_s, most, lacking=why)
        self._upkeep = Upkeep(lambda: time.process_time() + exports.fetcher.cpu_s)
        self._cores_at_s = -math.inf
        self._cores = self._cores_now(time.monotonic())
        self._tally = Tally(self._log, self._frontend.facts_of)
        self._stopping = False
        self._poller = zmq.Poller()
        self._lines = Lines(self._poller)
        self._notices: Notices[Callable[[], None]] = Notices()
        self._readers = Readers(settings.readers, self._hand_in)
        self._ahead = Ahead(exports, self._hand_in, self._fetched_for)
        self._workers = Workers(
            settings,
            started=functools.partial(self._hand_in, self._lines.open),
            ended=functools.partial(self._hand_in, self._replace),
        )

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None, leaving: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`; then finish what is in flight, within `drain_s`.

        Args:
            ready: called once loaders can connect.
            leaving: called once no more requests are taken.

        Raises:
            AgentError: workers cannot be started (an `--ops` module that fails to import, say).
        """
        try:
            with waking_on_signals(self._notices, self.stop):
                self._carry_out([do.Start()] * self._settings.workers)
                if self._settings.ops:  # an error in a named module shows at once
                    self._carry_out(self._staff.start_ops())
                ready()
                keys = "none" if self._settings.keys is None else str(self._settings.keys)
                exports, workers = self._exports.describe(), self._settings.workers
                told = {"address": self.address, "exports": exports, "workers": workers, "keys": keys}
                self._log.info("agent started", **told, pid=os.getpid(), instance=self.instance)
                self._loop(leaving)
        finally:
            self.close()

    def stop(self) -> None:
        """Take no more requests; `run` returns when those in flight are answered."""
        self._stopping = True

    def status(self) -> dict[str, Any]:
        """The agent's numbers about itself, without names of exports; any thread may ask, the loop answers.

        Raises:
            AgentError: it does not within `STATUS_WAIT_S`.
        """
        told: Future[dict[str, Any]] = Future()
        self._hand_in(lambda: told.set_result(self._status(b"", ())))
        try:
            return told.result(STATUS_WAIT_S)
        except FutureTimeout:
            raise AgentError(f"the agent must tell its status within {STATUS_WAIT_S:g} s, got nothing") from None

    def _loop(self, leaving: Callable[[], None]) -> None:
        for source in (self._frontend.socket, self._frontend.monitor, self._notices):
            self._poller.register(source, zmq.POLLIN)
        door = self._frontend.door
        if door is not None:
            self._poller.register(door.socket, zmq.POLLIN)
        deadline_s: float | None = None
        while True:
            now_s = time.monotonic()
            if self._stopping:
                if deadline_s is None:
                    deadline_s = now_s + self._settings.drain_s
                    leaving()
                    self._desk.stop()
                    self._staff.stop()
                    self._log.info("agent stopping", unanswered=self._admission.outstanding)
                if now_s > deadline_s or not (self._admission.outstanding or self._frontend.replies):
                    return
            orders, relief_s = self._staff.relieve(now_s)
            self._carry_out(orders)
            stopping_s = _STOPPING_LOOK_S if self._stopping else None
            waits_s = (
                self._frontend.wait_s(now_s),
                relief_s,
                stopping_s,
                self._look(now_s),
                self._see_whether_crowded(now_s),
                self._frontend.visits.wait_s(now_s),
            )
            self._lines.flush()
            events = dict(self._poller.poll(_shortest_ms(*waits_s)))
            for number, event in self._lines.ready(events):
                self._attend(number, event)
            if self._notices.fileno() in events:
                for notice in self._notices.take(MAX_PER_TURN):
                    notice()
            if self._frontend.monitor in events:
                self._frontend.watch()
            if door is not None and door.socket in events:
                door.answer()
            if self._frontend.socket in events:
                self._receive()
            for client in self._frontend.departed():
                owner = self._frontend.owner_of(client)
                if self._desk.is_loader(client):  # also one that has never greeted this run of the agent
                    self._frontend.visits.greeted(owner)
                self._frontend.visits.left(owner, self._desk.gone(client), time.monotonic())
                self._admission.finish(client, len(self._readers.turns.drop(client)) + self._ahead.drop(client))
            self._tell_who_has_gone(time.monotonic())
            self._cores_now(time.monotonic())
            self._carry_out(self._staff.assign(time.monotonic()))
            self._ahead.assign()
            self._send_due()

    def _tell_who_has_gone(self, now_s: float) -> None:
        for owner, unanswered in self._frontend.visits.over(now_s).items():
            self._log.info("loader left", loader=owner, unanswered=unanswered)

    def _look(self, now_s: float) -> float | None:
        """Look at connections by which bytes come; between two looks it need not be told of more of them."""
        wait_s = self._frontend.look(now_s)
        self._poller.register(self._frontend.incoming, zmq.POLLIN if wait_s is None else 0)
        return wait_s

    def _see_whether_crowded(self, now_s: float) -> float | None:
        """Make nothing while unread replies come to too much; the seconds until the next look, None if they do not."""
        shut = self._frontend.crowded(now_s)
        if shut != self._readers.turns.shut:
            self._readers.turns.shut = shut
            self._admission.shut(shut=shut)
            if shut:
                reason = "loaders do not read the replies that they have been sent"
                self._log.warning("replies paused", reason=reason, unread_mb=self._frontend.unread_nbytes[1] >> 20)
            self._readers.assign()
            self._carry_out(self._staff.assign(now_s))
        return LOOK_S if shut else None

    def _send_due(self) -> None:
        """Send what is due, and make nothing more for clients that do not take what they have been sent."""
        if self._frontend.replies:
            self._frontend.send_due(time.monotonic())
        for client, full in self._frontend.changes():
            self._admission.hold(client, full)
            self._readers.hold(client, full)

    def _receive(self) -> None:
        """What loaders have sent."""
        for _ in range(MAX_REQUESTS_PER_TURN):
            message = self._frontend.receive()
            if message is None:
                return
            client, *frames = message
            grant = self._frontend.grant_of(client)
            if grant is None:
                continue
            now_s = time.monotonic()
            cores = self._cores_now(now_s)
            each, room, op_room = self._per_worker, self._staff.programs.room, self._staff.ops.room
            exports = grant.of(self._exports.names)
            load = Load(room, self._staff.ops.building, self._upkeep.per_sample_s, cores, each, op_room)
            self._carry_out(self._desk.receive(client, frames, load, now_s=now_s, exports=exports))

    def _cores_now(self, now_s: float) -> float:
        """Cores that the workers may use, as this host had it a moment ago."""
        if now_s - self._cores_at_s > CORES_FOR_S:
            self._cores, self._cores_at_s = min(cores_available(), float(self._settings.workers)), now_s
            self._per_worker = self._cores / self._settings.workers
            self._staff.share_cores(self._per_worker)
        return self._cores

    def _fetched_for(self, client: bytes) -> int:
        """A client's jobs that wait for a worker or a reader."""
        return self._admission.waiting_of(client) + self._readers.turns.waiting_of(client)

    # --- instructions -----------------------------------------------------------------------------------------

    def _carry_out(self, instructions: Sequence[do.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case do.SendToWorker(number, frames):
                    self._lines.put(number, frames)
                case do.Read(jobs, note):
                    read = functools.partial(self._read, note=note)
                    for job in self._ahead.take(jobs, read, self._admission.finish):
                        read(job)
                case do.Queue(jobs):
                    if near := self._ahead.take(jobs, lambda job: self._queue([job]), self._admission.finish):
                        self._queue(near)
                case do.Tell(client, message):
                    self._frontend.tell(client, message)
                case do.Refuse(client, message):
                    self._tally.refused(client, message)
                    self._frontend.tell(client, message)
                case do.Greet(client, version, exports):
                    self._frontend.tell(client, self._welcome(version, exports))
                    self._frontend.visits.greeted(self._frontend.owner_of(client))
                case do.TellStatus(client, exports):
                    self._frontend.tell(client, Status(self._status(client, exports)))
                case do.LookUp(client, question):
                    make = functools.partial(next, answer_question(self._exports, question))
                    ids = [question.id] if isinstance(question, AskHeaders) else []
                    self._readers.submit(ReaderTask(client, make, functools.partial(self._looked_up, client), ids))
                case do.Build():
                    self._carry_out(self._staff.build(instruction, now_s=time.monotonic()))
                case do.Start(with_ops):
                    self._staff.hired(self._workers.start(with_ops=with_ops), with_ops=with_ops)
                case do.EndWorker(number):
                    self._workers.kill(number)
                case do.Log():
                    self._tally.happened(instruction)
                case do.GiveUp(reason):
                    raise AgentError(reason)

    def _welcome(self, version: int, exports: Sequence[str]) -> Welcome:
        unused = self._staff.lacking and not torch_lacking()
        return Welcome(
            version=version,
            instance=self.instance,
            exports=list(exports),
            encodings=list(encoding_names()),
            software=dict(software()) | (dict.fromkeys(_OF_OPS, "unused") if unused else {}),
            cores=self._cores_now(time.monotonic()),
            max_outstanding=self._settings.max_outstanding,
        )

    def _queue(self, jobs: Sequence[Job]) -> None:
        self._carry_out(self._staff.queue(jobs, now_s=time.monotonic()))

    def _read(self, job: Job, note: str) -> None:
        client = job.fetch.client
        make = functools.partial(answer_file, self._exports, job, note)
        self._readers.submit(ReaderTask(client, make, functools.partial(self._file_read, client), [job.item.id]))

    # --- reader threads and workers ---------------------------------------------------------------------------

    def _hand_in(self, function: Callable[..., None], *arguments: object) -> None:
        """Called by any thread: have the loop call `function`."""
        self._notices.put(functools.partial(function, *arguments))

    def _file_read(self, client: bytes, answer: Answer) -> None:
        self._upkeep.count(answer.cpu_s)
        self._answered(client, answer.kind, answer.cpu_s, answer.frames())

    def _looked_up(self, client: bytes, answer: Answer) -> None:
        if isinstance(answer.message, Failed):
            self._tally.refused(client, answer.message)
        self._reply(client, answer.frames())

    def _attend(self, number: int, event: int = zmq.POLLIN) -> None:
        """A worker has said something, or can be sent more, or has hung up."""
        messages, there = self._lines.receive(number, event, most=MAX_PER_TURN)
        for frames in messages:
            self._from_worker(number, frames)
        if not there:
            self._staff[number].left(number)
            self._workers.kill(number)  # if it still lives; the thread that waits for its end tells us

    def _from_worker(self, number: int, message: Sequence[memoryview]) -> None:
        word, *said = message
        if word == message_types.ANSWER:
            self._upkeep.count(0.0)
            kind, cpu_s, took_s = msgpack.unpackb(said[0])
            job = self._staff[number].answered(number, took_s, sum(map(len, said)), now_s=time.monotonic())
            if job is not None:
                self._answered(job.fetch.client, kind, cpu_s, said[1:])
        elif word == message_types.REGISTERED:
            client = self._staff[number].built(number, now_s=time.monotonic()).client
            built = unpack(said[1])
            if isinstance(built, Registered):
                self._tally.registered(client, built)
            elif isinstance(built, Failed):
                self._tally.refused(client, built)
            self._reply(client, said[1:])
        elif word in (message_types.TRIED, message_types.TRIED_PROGRAM):
            about, trial = (bytes(frame) for frame in said)
            of_program = word == message_types.TRIED_PROGRAM
            self._carry_out(self._staff[number].tried(number, about.decode(), trial, of_program=of_program))
        elif word == message_types.READY:
            self._staff[number].ready(number)
        elif self._settings.ops:
            raise AgentError(
                f"workers must be able to load their ops: {bytes(said[0]).decode()}; correct --ops or PYTHONPATH, or "
                "install what is missing"
            )
        else:
            self._carry_out(self._staff.give_ops_up(bytes(said[0]).decode()))

    def _replace(self, number: int, exit_code: str) -> None:
        """A worker's process has ended."""
        self._workers.forget(number)
        self._attend(number)  # its last words
        self._lines.close(number)
        self._carry_out(self._staff.died(number, exit_code, now_s=time.monotonic()))

    # --- out --------------------------------------------------------------------------------------------------

    def _answered(self, client: bytes, kind: str, cpu_s: float, frames: Sequence[Payload]) -> None:
        """A sample, or why there is none."""
        self._tally.answered(kind, cpu_s)
        if kind == Failed.__name__:
            failed = unpack(memoryview(frames[0]))
            assert isinstance(failed, Failed), failed
            self._tally.refused(client, failed)
        self._reply(client, frames)

    def _reply(self, client: bytes, frames: Sequence[Payload]) -> None:
        self._admission.finish(client)
        self._frontend.reply(client, frames)
        self._send_due()

    def _status(self, client: bytes, exports: Sequence[str]) -> dict[str, Any]:
        folders, door = self._exports.describe(), self._frontend.door
        return {
            **self._tally.values(),
            "instance": self.instance,
            "exports": {name: folders[name] for name in exports},
            "keys": door is not None,
            "keys_refused": 0 if door is None else door.refused,
            "workers": len(self._staff.programs.ready_workers),
            "worker_pids": self._workers.pids(with_ops=False),
            "op_workers": len(self._staff.ops.ready_workers),
            "op_workers_at_most": self._settings.op_workers_at_most,
            "op_worker_pids": self._workers.pids(with_ops=True),
            "op_workers_lacking": self._staff.lacking,
            "worker_deaths": self._staff.deaths,
            "stores_away": len(self._exports.fetcher.away),
            "store_slow_downs": self._exports.fetcher.slow_downs,
            "store_cpu_s": round(self._exports.fetcher.cpu_s, 3),
            "pipelines": len(self._pipelines),
            "loaders": self._desk.loaders,
            "clients": self._admission.clients,
            "queued": self._admission.queued,
            AT_WORK: self._staff.at_work(client) + self._ahead.of(client),
            "outstanding": self._admission.outstanding,
            "dropped_replies": self._frontend.dropped,
            "hung_up": self._frontend.hung_up,
            "unread_requests_mb": round(self._frontend.unread_nbytes[0] / 1e6, 3),
            "unread_replies_mb": round(self._frontend.unread_nbytes[1] / 1e6, 3),
            "sent_mb": round(self._frontend.sent_nbytes / 1e6, 3),
            "limit_mbit": self._settings.limit_mbit,
        }

    def close(self) -> None:
        """End threads and workers, flush what has been sent, free the address. Safe to call twice."""
        if self._frontend.closed:
            return
        self._tell_who_has_gone(math.inf)
        self._lines.close_all()
        self._readers.stop()
        self._ahead.stop()
        self._workers.stop(STOP_S, told=self._staff.ready_workers)
        self._notices.close()
        self._frontend.close()
        self._log.info("agent stopped", answers=dict(self._tally.answers), unanswered=self._admission.outstanding)
        self._log.close()


def _shortest_ms(*waits_s: float | None) -> int | None:
    """The shortest of some waits, as a poller takes it; None when there is none."""
    known = [wait_s for wait_s in waits_s if wait_s is not None]
    return math.ceil(1000 * min(known)) if known else None
