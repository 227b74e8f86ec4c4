"""The agent of a loader, from the main process's side: where it is, starting one on this host, agreeing with it."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from sophon_loader.client.address import Address
from sophon_loader.client.local_agent import EXPORT, LocalAgentProcess
from sophon_loader.client.options import LocalAgent, OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets.locations import common_root
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import ConfigError
from sophon_loader.fleet.agreement import Agreement, Handshake, proposed
from sophon_loader.host.system import cores_available
from sophon_loader.logs import log_line
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed

MIN_LOCAL_AGENT_CORES = 0.01
"""Planned for a local agent without a link where the loader's processes may use every core: above 0, as `Rates` must
be, and so small that no op is worth moving."""

log = logging.getLogger(__name__)


class Meeting:
    """One trial to agree with an agent.

    A local one takes some seconds to start, because its workers import torch. Nothing runs here meanwhile, no thread
    and no process: whoever wants the agreement looks for it.

    Args:
        where: gives the agent's address once it listens, as `LocalAgentProcess.address` does.
        shake_hands: with an agent that listens.
        complete: makes the agreement what it is for this loader.

    Attributes:
        agreement: what came of it; None until the agent has answered.

    Example:
        >>> meeting = agent.meet(chains, encodings, seed, processes=2)
        >>> while not meeting.answered(wait_s=0.1):
        ...     print("it still starts")
        >>> meeting.close()
    """

    def __init__(
        self,
        where: Callable[[float], Address | None],
        shake_hands: Callable[[Address], Handshake],
        complete: Callable[[Agreement], Agreement],
    ) -> None:
        self.agreement: Agreement | None = None
        self._where = where
        self._shake_hands = shake_hands
        self._complete = complete
        self._handshake: Handshake | None = None

    def answered(self, wait_s: float = 0.0) -> bool:
        """Whether the agent has agreed.

        Args:
            wait_s: for how long to wait for each answer.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        address = self._where(wait_s)
        if address is None:
            return False
        if self._handshake is None:
            self._handshake = self._shake_hands(address)
        found = self._handshake.agreement(wait_s)
        if found is not None:
            self.agreement = self._complete(found)
        return found is not None

    def close(self) -> None:
        """End it."""
        if self._handshake is not None:
            self._handshake.close()
            self._handshake = None


class Agent:
    """One agent and its life, if it is the loader's own.

    Args:
        where: the address of one that runs, or the settings of one to be started on this host.
        data: the dataset that it must serve.
        options: time-outs.
        is_one_of_several: whether others may have files that it lacks.
    """

    def __init__(
        self,
        where: Address | LocalAgent,
        data: Offloadable,
        options: OffloadOptions,
        *,
        is_one_of_several: bool = False,
    ) -> None:
        self._where = where
        self._is_one_of_several = is_one_of_several
        self._data = data
        self._options = options
        self._process: LocalAgentProcess | None = None

    def __str__(self) -> str:
        return "local" if isinstance(self._where, LocalAgent) else str(self._where)

    @property
    def is_own(self) -> bool:
        """Whether it is this loader's, so that it is there or will never be."""
        return isinstance(self._where, LocalAgent)

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

    def meet(self, chains: Sequence[Chain], encodings: Sequence[str], seed: Seed, processes: int) -> Meeting:
        """Start it if need be, shake hands with it, and register the pipelines: a trial, for which nothing waits.

        Args:
            chains: one per source of the dataset, at least one.
            encodings: names of those that the user allows.
            seed: of the run.
            processes: that load, and share this host's cores with a local agent.

        Raises:
            ConfigError: it cannot serve this dataset, whatever it says.
        """
        data, options, where, name = self._data, self._options, self._where, str(self)

        def shake_hands(address: Address) -> Handshake:
            several = self._is_one_of_several
            return Handshake(data, chains, address, options, seed, encodings, is_one_of_several=several)

        if not isinstance(where, LocalAgent):
            return Meeting(lambda wait_s: where, shake_hands, lambda found: found)
        most, files_here = self.cores(processes), self.files_here

        def complete(found: Agreement) -> Agreement:
            terms = replace(found.terms, files_here=files_here)
            return replace(found, terms=terms, agent_cores=min(found.agent_cores, most), agent=name)

        return Meeting(self._started(where).address, shake_hands, complete)

    def proposed(self, chains: Sequence[Chain], seed: Seed) -> Terms:
        """What is known of the terms while it starts; of the address of a local one, only the export.

        Args:
            chains: one per source of the dataset.
            seed: of the run.

        Raises:
            ConfigError: it would have to be started here, and the data is elsewhere.
        """
        if isinstance(self._where, LocalAgent):
            self._served()
        address = Address("", EXPORT) if isinstance(self._where, LocalAgent) else self._where
        terms = proposed(chains, address, self._options, seed, by_programs=self._data.by_programs)
        return replace(terms, files_here=self.files_here)

    @functools.cached_property
    def _base(self) -> str | None:
        """The folder on this host that a local agent would serve; None if some of the data is not here."""
        here = all(source.root is not None for source in self._data.sources)
        return common_root(self._data) if here else None

    def _served(self) -> str:
        """As `_base`.

        Raises:
            ConfigError: there is no such folder.
        """
        if self._base is None:
            pairs = zip(self._data.owners, self._data.sources, strict=True)
            name = next(type(owner).__name__ for owner, source in pairs if source.root is None)
            raise ConfigError(f"agent='local' must have a dataset on this host, got a {name}; give the agent's address")
        return self._base

    def _started(self, settings: LocalAgent) -> LocalAgentProcess:
        if self._process is None:
            self._process = LocalAgentProcess(self._served(), settings)
            log.info(log_line("local agent started", pid=self._process.pid))
        return self._process

    def close(self) -> None:
        """End it, if this loader has started it; `meet` starts it anew."""
        if self._process is not None:
            self._process.close()
            self._process = None
