"""The agent of a loader, from the main process's side: where it is, starting one on this host, agreeing with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sophon_loader.client.address import Address
from sophon_loader.client.local_agent import LocalAgentProcess
from sophon_loader.client.options import LocalAgent, OffloadOptions
from sophon_loader.datasets.locations import common_root
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import ConfigError
from sophon_loader.host import cores_available
from sophon_loader.main.agreement import Agreement, agree
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed

MIN_LOCAL_AGENT_CORES = 0.01
"""Planned for a local agent when the loader's processes may use every core: above 0, because `Rates` must be, and so
small that no op is worth moving."""

log = logging.getLogger(__name__)


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

    def agree(self, chains: Sequence[Chain], encodings: Sequence[str], seed: Seed, processes: int) -> Agreement:
        """Start it if need be, shake hands with it, and register the pipelines.

        Args:
            chains: one per source of the dataset.
            encodings: names of those that the user allows.
            seed: of the run.
            processes: that load, and share this host's cores with a local agent.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset.
        """
        where = self._where
        address = self._started(where).address if isinstance(where, LocalAgent) else where
        agreement = agree(self._data, chains, address, self._options, seed, encodings)
        log.info("agreed with the agent at %s on the encodings %s", address, ", ".join(agreement.encodings))
        if not isinstance(where, LocalAgent):
            return agreement
        spare = max(cores_available() - processes, MIN_LOCAL_AGENT_CORES)
        terms = replace(agreement.terms, files_here=where.limit_mbit is None)
        return replace(agreement, terms=terms, agent_cores=min(agreement.agent_cores, spare), agent=str(self))

    def _started(self, settings: LocalAgent) -> LocalAgentProcess:
        if self._process is None:
            base = common_root(self._data)
            if base is None or any(source.root is None for source in self._data.sources):
                raise ConfigError("agent='local' must have a dataset on this host, got a RemoteImageFolder")
            self._process = LocalAgentProcess(base, settings)
            log.info("started an agent on this host, process %d", self._process.pid)
        return self._process

    def close(self) -> None:
        """End it, if this loader has started it; `agree` starts it anew."""
        if self._process is not None:
            self._process.close()
            self._process = None
