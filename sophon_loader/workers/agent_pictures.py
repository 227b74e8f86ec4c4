"""Pictures of a dataset of any class that an agent reads, cuts or decodes: one request each, at the first look."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from xxhash import xxh3_64_intdigest

from sophon_loader.auto.shared_live import Live
from sophon_loader.auto.shared_tariff import Dealer
from sophon_loader.client.drawn_program import ALL_STEPS, FILE, DrawnProgram
from sophon_loader.client.header_questions import MAX_UNANSWERED
from sophon_loader.client.session import Session
from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.decide.tariff import Prices
from sophon_loader.encodings.registry import decode
from sophon_loader.errors import (
    AgentUnreachable,
    MalformedMessage,
    ProgramRefused,
    SampleDiffers,
    SophonError,
    must_leave,
)
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.fleet.worker_fleet import WorkerFleet
from sophon_loader.host.regular import read_regular
from sophon_loader.host.shared import SharedArray
from sophon_loader.kinds.image.header import PACKED_NBYTES, Header, unpack
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.measures.counters import Row, Statistics
from sophon_loader.programs.program import Program
from sophon_loader.wire.failures import error_of
from sophon_loader.wire.messages import CHEAPEST, NO_FILE
from sophon_loader.workers.file_roots import FileRoots, Place
from sophon_loader.workers.headers_by_key import HeadersByKey
from sophon_loader.workers.meter import Meter
from sophon_loader.workers.one_picture import OnePicture, suits
from sophon_loader.workers.this_worker import note_agent, worker_count, worker_number
from sophon_loader.workers.verifying_pictures import PictureVerifier, may_have

HEADERS_S = 2.0
"""Seconds that a header is waited for; then the picture is opened on this host."""
WITHOUT_INFO, WITH_INFO = 0, 1
"""Numbers of the sources that pictures are asked for by: without the metadata of their files, and with it."""


@dataclass
class _Asked:
    """A file whose header was asked for.

    Args:
        key: of it.
        path: on this host.
        lacked_by: numbers of the agents that have answered that they lack it.
    """

    key: str
    path: str
    lacked_by: set[int] = field(default_factory=set)


class AgentPictures:
    """The agents of a loader, as a process that makes samples asks them.

    It is made in the main process; each worker has a copy, with a connection of its own from the first picture on. The
    threads of a process take turns: user code may look at pictures in threads, and torch's workers pickle in one.

    Args:
        routes: to the agents.
        roots: which folder of an export a path on this host lies in.
        statistics: counted by each process.
        live: prices, and the choices that the agent has weighed; None to ask for `furthest` of every picture.
        headers: of files.
        iteration: int64[1], number of the running iteration over the loader.
        furthest: last segment that an agent is asked for.

    Attributes:
        keeps_info: True once user code has read the metadata of a picture; it will do so with others.

    Example:
        >>> header, nbytes, supplier = pictures.header_of("/mnt/photos/cat/1.jpg")
        >>> segment, value = supplier.made(program, pixels=True)
    """

    def __init__(
        self,
        routes: Sequence[SharedRoute],
        roots: FileRoots,
        statistics: Statistics,
        live: Live | None,
        headers: HeadersByKey,
        iteration: SharedArray,
        furthest: int = ALL_STEPS,
    ) -> None:
        self._ways = WorkerFleet(routes)
        self._roots = roots
        self._folders: list[str] = []
        """Of the agents that have agreed, see `FileRoots.agreed_on`."""
        self._nowhere = NO_FILE
        """Stands for the size of a file that none of these agents has; others may have it."""
        self._statistics = statistics
        self._live = live
        self._furthest = furthest
        self._iteration = iteration
        self._headers = headers
        self._asked: dict[int, _Asked] = {}
        """Files whose headers were asked for, by the number in the question; the newest ones."""
        self._numbers = 0
        self._process: tuple[int, Session | Fleet | None, Row, Meter] | None = None
        self._dealer: Dealer | None = None
        self._mounted = False
        self._verifier = PictureVerifier(0.0)
        self._differs: SampleDiffers | None = None
        self._locks: dict[int, threading.RLock] = {}
        self.keeps_info = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_dealer": None, "_asked": {}, "_locks": {}}

    @property
    def _turn(self) -> threading.RLock:
        """Held by the thread whose turn it is. A forked process has another one: nobody would release its copy."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def close(self) -> None:
        """Close this process's connection, if it has one."""
        with self._turn:
            if self._process is not None and self._process[0] == os.getpid() and self._process[1] is not None:
                self._process[1].close()
            self._process = None

    @property
    def as_agreed(self) -> bool:
        """True: programs hold all that an agent needs to know."""
        return True

    def call_meanwhile(self, what: Any) -> None:
        """See `WorkerFleet.call_meanwhile`."""
        self._ways.call_meanwhile(what)

    # --- a batch, or a sample ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """A sample begins."""
        with self._turn:
            session, row, meter = self._of_this_process()
            row.begin(int(self._iteration.array[0]))
            meter.begin()
            if session is not None:
                self._ways.trust(session, worker_number(), mounted=self._mounted)

    def end(self) -> None:
        """The sample has been made, or has failed.

        Raises:
            SampleDiffers: a picture of it was found to be another one here. User code may have caught that error.
        """
        differs, self._differs = self._differs, None
        if differs is not None:
            raise differs
        with self._turn:
            if self._process is None:
                return
            _, session, _, meter = self._process
            meter.count()
            if session is not None:
                self._ways.note(session, worker_number())
                self._statistics.shortest_net_s.array[worker_number()] = session.shortest_net_s

    def _of_this_process(self) -> tuple[Session | Fleet | None, Row, Meter]:
        if self._ways.look():
            self.close()
            places = [Place(one.terms.address.folder, *one.place) for one in self._ways.agreed]
            self._folders = self._roots.agreed_on(places)
            instances = "\n".join(sorted(one.terms.instance for one in self._ways.agreed))
            self._nowhere = NO_FILE - 1 - (xxh3_64_intdigest(instances.encode()) >> 2)
        if self._process is None or self._process[0] != os.getpid():
            session = self._ways.session(worker_number(), worker_count(), self._folders)
            self._mounted = self._roots.mounted
            if session is not None:
                for number, lane in enumerate(session.lanes):
                    lane.header_questions.told = partial(self._learn, number)
            row = self._statistics.row(worker_number())
            self._process = (os.getpid(), session, row, Meter(session, row))
            self._dealer = None if self._live is None else Dealer(self._live.tariff)
            terms = self._ways.terms
            self._verifier = PictureVerifier(0.0 if terms is None else terms.options.verify)
        return self._process[1:]

    # --- headers ----------------------------------------------------------------------------------------------

    def header_of(self, path: str) -> tuple[Header, int, OnePicture] | None:
        """See `recording.opener.Elsewhere`."""
        if self._process is None or self._process[0] != os.getpid():  # forked within a sample
            return None
        session = self._process[1]
        if session is None or session.gone:
            return None
        key = self._roots.key_of(path)
        if key is None:
            return None
        path = path if path.startswith("/") else os.path.abspath(path)  # the current folder may change up to the look
        known = self._headers.of(key)
        if known is None or (known[0] < 0 and known[0] != self._nowhere):
            known = self._header_asked_for(key, path)
        if known is None or not known[1]:
            return None
        if not self._verifier.has_size(path, known[0]):
            self._headers.forget(key)
            return None
        with contextlib.suppress(ValueError):
            return unpack(known[1]), known[0], OnePicture(self, known[0], path)
        return None

    def opened_here(self, nbytes: int) -> None:
        """See `recording.opener.Elsewhere`."""
        if self._process is not None:
            _, session, row, _ = self._process
            row.count_file(nbytes)
            if session is not None and session.gone:
                row.add(fallbacks=1)

    def read_here(self, path: str) -> bytes:
        """Return a file that no agent has sent, from this host.

        Args:
            path: as the user's code gives it.

        Raises:
            OSError: it cannot be read.
        """
        data = read_regular(path)
        if self._process is not None:
            row = self._process[2]
            row.count_file(len(data))
            row.add(fallbacks=1)
        return data

    def _header_asked_for(self, key: str, path: str) -> tuple[int, bytes] | None:
        with self._turn:
            session = None if self._process is None else self._process[1]
            if session is None:  # another thread has closed it meanwhile
                return None
            self._numbers += 1
            asked = self._asked[self._numbers] = _Asked(key, path)
            if len(self._asked) > MAX_UNANSWERED:
                del self._asked[next(iter(self._asked))]
            wanted = Wanted(WITHOUT_INFO, self._numbers, FILE, "file", key)
            session.ask_headers([wanted])
            session.await_headers(HEADERS_S)
            if asked.lacked_by:
                for number, lane in enumerate(session.lanes):
                    if number not in asked.lacked_by:
                        lane.ask_headers([wanted])
                session.await_headers(HEADERS_S)
                if len(asked.lacked_by) == len(session.lanes):
                    self._headers.learn(key, self._nowhere, b"")
        return self._headers.of(key)

    def _learn(self, agent: int, numbers: Sequence[int], nbytes: Sequence[int], packed: Sequence[bytes]) -> None:
        for number, size, header in zip(numbers, nbytes, packed, strict=True):
            asked = self._asked.get(number)
            if asked is None or len(header) not in (0, PACKED_NBYTES):
                continue
            if size == NO_FILE:
                asked.lacked_by.add(agent)
                session = None if self._process is None else self._process[1]
                if isinstance(session, Fleet):
                    session.note_lacking(agent, asked.key)
            else:
                del self._asked[number]
                if may_have(asked.path, size):
                    self._headers.learn(asked.key, size, header)

    # --- pictures ---------------------------------------------------------------------------------------------

    def ask(self, path: str, nbytes: int, program: Program, *, pixels: bool) -> tuple[int, Any]:
        """Ask for a picture, and wait for it.

        Args:
            path: of its file on this host.
            nbytes: size of the file.
            program: of the picture; one without steps asks for the file.
            pixels: False for the file or a part of it.

        Returns:
            A segment, and the value there.

        Raises:
            SophonError: no agent sends it.
        """
        with self._turn:
            session, row, _ = self._of_this_process()
            if session is None:
                raise AgentUnreachable("an agent must answer, got none")
            key = self._roots.key_of(path)  # by now: another one where other agents have agreed since its header came
            if key is None:
                raise AgentUnreachable(f"an agent must have {path}, got none that has its folder")
            wanted = self._wanted(key, nbytes, program, pixels=pixels)
            self._numbers += 1
            batch = BatchId(-1, 0, self._numbers)
            session.keep(())
            session.want(batch, [wanted])
            reply = session.next(batch)
            session.keep(())
            segment, value = self._taken(session, reply, row, program)
            if type(value) is bytes and len(value) != nbytes:
                self._headers.forget(key)
                raise ProgramRefused(f"file {key!r} must have {nbytes} bytes, got {len(value)} from the agent")
            return segment, value

    def verify(self, path: str, nbytes: int, program: Program, answer: tuple[int, Any]) -> None:
        """Compare an answer with what this host makes of the file, if it is one of those to be compared.

        Args:
            path: of the file on this host.
            nbytes, program: that were asked for.
            answer: of the agent.

        Raises:
            SampleDiffers: this host makes another picture.
        """
        row = self._of_this_process()[1]
        if not self._verifier.due(path, program, nbytes, row):
            return
        keeps_info = self.keeps_info

        def again() -> tuple[int, Any]:
            return self.ask(path, nbytes, program, pixels=True)

        try:
            row.add(verified=self._verifier.verify(path, program, answer, again, keeps_info=keeps_info))
        except SampleDiffers as differs:
            self._differs = differs
            raise

    def _wanted(self, key: str, nbytes: int, program: Program, *, pixels: bool) -> Wanted:
        prices: Prices | None = None
        if self._dealer is not None:
            (prices,) = self._dealer.batch(1)
        source = WITH_INFO if self.keeps_info else WITHOUT_INFO
        furthest = self._furthest if pixels else FILE
        if not self._furthest or (prices is None and (self._dealer is not None or not furthest)):
            return Wanted(source, 0, FILE, "file", key)
        drawn = DrawnProgram(replace(program, file=key).pack(), nbytes, tuple(range(ALL_STEPS + 1)))
        if prices is None:
            return Wanted(source, 0, furthest, "pixels", key, drawn=drawn)
        asked = (prices.wire, prices.agent, prices.loader, prices.per_worker)
        return Wanted(source, 0, furthest, CHEAPEST, key, prices=asked, drawn=drawn)

    def _taken(self, session: Session | Fleet, reply: Reply, row: Row, program: Program) -> tuple[int, Any]:
        if reply.failed is not None:
            self._headers.forget(reply.wanted.key)
            row.add(refused=1)
            raise error_of(reply.failed.failure, reply.failed.text)
        sample = reply.sample
        if sample is None:
            raise AgentUnreachable(f"an agent must send {reply.wanted.key!r}, got {reply.unusable or reply.why}")
        note_agent(self._ways, session, self._statistics, self._live, sample, len(reply.payload))
        try:
            value = decode(sample.encoding, sample.meta, reply.payload)
            if sample.cut > reply.wanted.cut:
                raise MalformedMessage(f"segment must be at most {reply.wanted.cut}, got {sample.cut} from an agent")
            if not suits(program, sample.cut, value):
                what = f"{type(value).__name__} at segment {sample.cut}"
                raise MalformedMessage(f"an agent must send what the program makes of the picture, got another {what}")
        except Exception as error:
            if must_leave(error):
                raise
            row.add(malformed=1)
            raise error if isinstance(error, SophonError) else MalformedMessage(str(error)) from error
        row.count(sample, 0 if reply.wanted.prices else reply.wanted.cut, reply.turnaround_s)
        return sample.cut, value if sample.cut or isinstance(value, PartOfFile) else bytes(value)
