"""The agent of a loader, from the main process's side: where it is, starting one on this host, agreeing with it."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sophon_loader.client.address import Address
from sophon_loader.client.local_agent import EXPORT, LocalAgentProcess
from sophon_loader.client.options import LocalAgent, OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets.locations import Locations, common_root
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import ConfigError, SophonError, may_come
from sophon_loader.host.system import cores_available, now_s
from sophon_loader.logs import log_line
from sophon_loader.main.agreement import Agreement, Handshake, proposed
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.routes.state import Route, Standing
from sophon_loader.routes.waiting import Wait

MIN_LOCAL_AGENT_CORES = 0.01
"""Planned for a local agent without a link where the loader's processes may use every core: above 0, as `Rates` must
be, and so small that no op is worth moving."""

_LOOK_S = 0.1
"""Where an agreement is waited for, this long at a time, so that an agent that ends is noticed."""

log = logging.getLogger(__name__)


class Joining:
    """An agreement in the making.

    It takes a local agent some seconds, because its workers import torch, and one on another host until it is there.
    Nothing runs here meanwhile, no thread and no process: whoever wants the agreement looks for it.

    Args:
        where: gives the agent's address once it listens, as `LocalAgentProcess.address` does.
        shake_hands: with an agent that listens.
        complete: makes the agreement what it is for this loader.
        again: whether one that is missing is tried again; otherwise that is an error.

    Attributes:
        error: what the newest trial came to, if it has failed.

    Example:
        >>> joining = agent.join(chains, encodings, seed, processes=2)
        >>> joining.agreement()  # None until the agent has answered
    """

    def __init__(
        self,
        where: Callable[[float], Address | None],
        shake_hands: Callable[[Address], Handshake],
        complete: Callable[[Agreement], Agreement],
        *,
        again: bool = False,
    ) -> None:
        self.error: SophonError | None = None
        self._route = Route(Standing.STARTING, now_s())
        self._again = again
        self._spent_s = 0.0
        """In this trial, longer than was said."""
        self._where = where
        self._shake_hands = shake_hands
        self._complete = complete
        self._handshake: Handshake | None = None

    def agreement(self, wait_s: float = 0.0) -> Agreement | None:
        """What came of it; None if nothing has within `wait_s`.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        if self._handshake is None and not self._route.due(now_s()):
            time.sleep(wait_s)
            return None
        began_s = now_s()
        try:
            found = self._answer(wait_s)
        except SophonError as error:
            self._end_trial()
            spent_s, self._spent_s = self._spent_s + max(0.0, now_s() - began_s - wait_s), 0.0
            if not (self._again and may_come(error)):
                self._route.refused(str(error))
                raise
            self.error = error
            self._route.failed(now_s(), str(error), spent_s)
            log.info(log_line("agent missing", reason=error))
            return None
        self._spent_s += max(0.0, now_s() - began_s - wait_s)
        if found is not None:
            self._route.answered(now_s())
            log.info(log_line("agent agreed", agent=found.agent, encodings=",".join(found.encodings)))
        return found

    def _answer(self, wait_s: float) -> Agreement | None:
        address = self._where(wait_s)
        if address is None:
            return None
        if self._handshake is None:
            self._route.trial_begins()
            self._handshake = self._shake_hands(address)
        found = self._handshake.agreement(wait_s)
        return None if found is None else self._complete(found)

    def _end_trial(self) -> None:
        if self._handshake is not None:
            self._handshake.close()
            self._handshake = None

    def close(self) -> None:
        """Be done, or leave it for now: who looks again begins another trial."""
        if self._handshake is not None:
            self._end_trial()
            self._route.failed(now_s(), "it was left")


class Agent:
    """One agent and its life, if it is the loader's own.

    Args:
        where: the address of one that runs, or the settings of one to be started on this host.
        data: the dataset that it must serve.
        options: time-outs.
    """

    def __init__(self, where: Address | LocalAgent, data: Offloadable, options: OffloadOptions) -> None:
        self._where = where
        self._data = data
        self._options = options
        self._process: LocalAgentProcess | None = None

    def __str__(self) -> str:
        return "local" if isinstance(self._where, LocalAgent) else str(self._where)

    @property
    def files_here(self) -> bool:
        """Whether what would cross as a file is read here instead: it is this host's own, and has no link to pace."""
        return isinstance(self._where, LocalAgent) and self._where.limit_mbit is None

    def cores(self, processes: int) -> float:
        """Most cores that may be planned for it; inf for one on another host, which says itself what it has.

        One on this host has what the loader's processes leave. Behind a link that is paced those wait, so that its
        workers have at least the share that they would have if all of them worked at once.

        Args:
            processes: that load, and share this host's cores with a local agent.
        """
        if not isinstance(self._where, LocalAgent):
            return math.inf
        cores = cores_available()
        workers = self._where.workers or cores
        if self.files_here:
            return min(max(cores - processes, MIN_LOCAL_AGENT_CORES), workers)
        return workers * min(1.0, cores / (processes + workers))

    def why_useless(self, processes: int) -> str:
        """Why it can gain nothing, whatever the pictures and ops are; "" if it may.

        Where it has no core that the loader's processes could not use themselves, all that it does for them takes their
        time, and that of encoding and decoding besides.

        Args:
            processes: that load.
        """
        cores = cores_available()
        if not self.files_here or self._base is None or cores > processes:
            return ""
        return (
            f"no agent was started, because it could gain nothing: the loader's {processes} processes may use all "
            f"{cores:g} cores of this host, and read the files themselves"
        )

    def agree(
        self, chains: Sequence[Chain], encodings: Sequence[str], seed: Seed, processes: int, *, needed: bool
    ) -> Agreement | Joining:
        """Start it if need be, shake hands with it, and register the pipelines. An agent on another host that is
        missing is waited for, unless the files can be read here: then it may come later.

        Args:
            chains: one per source of the dataset.
            encodings: names of those that the user allows.
            seed: of the run.
            processes: that load, and share this host's cores with a local agent.
            needed: whether nothing can be done without it.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset.
        """
        joining = self.join(chains, encodings, seed, processes)
        here = self._options.agent_missing == "read-here" and Locations(self._data, None).all_here and not needed
        try:
            return self.await_joining(joining, leave=here) or joining
        except Exception:
            self.close()
            raise

    def await_joining(self, joining: Joining, *, leave: bool = False) -> Agreement | None:
        """What comes of an agreement in the making; None if the agent is missing, and is to be left.

        Args:
            joining: of this agent; closed at the end, unless it is left.
            leave: it is left once a trial has failed.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset.
        """
        wait, told = Wait(str(self), self._options), joining.error if leave else None
        try:
            while (agreement := joining.agreement(_LOOK_S)) is None:
                if joining.error is not told and joining.error is not None:
                    if leave:
                        return None
                    told = joining.error
                    wait.goes_on(told)
        except BaseException:
            joining.close()
            raise
        joining.close()
        return agreement

    def join(self, chains: Sequence[Chain], encodings: Sequence[str], seed: Seed, processes: int) -> Joining:
        """As `agree`, without waiting for it.

        Args:
            chains: one per source of the dataset.
            encodings: names of those that the user allows.
            seed: of the run.
            processes: that load, and share this host's cores with a local agent.

        Raises:
            ConfigError: it cannot serve this dataset, whatever it says.
        """
        data, options, where, name = self._data, self._options, self._where, str(self)

        def shake_hands(address: Address) -> Handshake:
            return Handshake(data, chains, address, options, seed, encodings)

        if not isinstance(where, LocalAgent):
            return Joining(lambda wait_s: where, shake_hands, lambda found: found, again=True)
        most, files_here = self.cores(processes), self.files_here

        def complete(found: Agreement) -> Agreement:
            terms = replace(found.terms, files_here=files_here)
            return replace(found, terms=terms, agent_cores=min(found.agent_cores, most), agent=name)

        return Joining(self._started(where).address, shake_hands, complete)

    def proposed(self, chains: Sequence[Chain], seed: Seed) -> Terms:
        """What is known of the terms while it starts; of the address of a local one, only the export.

        Args:
            chains: one per source of the dataset.
            seed: of the run.
        """
        address = Address("", EXPORT) if isinstance(self._where, LocalAgent) else self._where
        terms = proposed(chains, address, self._options, seed)
        return replace(terms, files_here=self.files_here)

    @functools.cached_property
    def _base(self) -> str | None:
        """The folder on this host that a local agent would serve; None if some of the data is not here."""
        here = all(source.root is not None for source in self._data.sources)
        return common_root(self._data) if here else None

    def _started(self, settings: LocalAgent) -> LocalAgentProcess:
        if self._process is None:
            if self._base is None:
                pairs = zip(self._data.owners, self._data.sources, strict=True)
                name = next(type(owner).__name__ for owner, source in pairs if source.root is None)
                raise ConfigError(
                    f"agent='local' must have a dataset on this host, got a {name}; give the agent's address"
                )
            self._process = LocalAgentProcess(self._base, settings)
            log.info(log_line("local agent started", pid=self._process.pid))
        return self._process

    def close(self) -> None:
        """End it, if this loader has started it; `agree` starts it anew."""
        if self._process is not None:
            self._process.close()
            self._process = None
