"""The engine of a dataset of any class with an agent: pictures are asked for one by one, as samples look at them."""

from __future__ import annotations

from typing import Any

import numpy as np

from sophon_loader.client.drawn_program import ALL_STEPS, FILE, SHRUNK
from sophon_loader.client.options import LocalAgent
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.policies.fixed import AllOff, NoOff, ResizeOff
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.epoch.epoch import Epoch
from sophon_loader.host.shared import SharedArray
from sophon_loader.measures.counters import Totals
from sophon_loader.run.engine import Engine
from sophon_loader.run.run import Run
from sophon_loader.settings import Settings
from sophon_loader.workers.agent_pictures import AgentPictures
from sophon_loader.workers.file_roots import FileRoots
from sophon_loader.workers.headers_by_key import HeadersByKey

_FURTHEST = {NoOff: FILE, ResizeOff: SHRUNK, AllOff: ALL_STEPS}
"""Last segment that an agent is asked for, by policy."""


def why_no_agent(settings: Settings) -> str:
    """Return the reason why pictures of a dataset of any class are not asked of the agent; "" if they are, or if there
    is none."""
    if settings.agent is None:
        return ""
    if isinstance(settings.agent, LocalAgent):
        return "an agent on this host gains nothing for a dataset of a class of its own, whose workers read its files"
    if not isinstance(settings.policy, PricingPolicy) and type(settings.policy) not in _FURTHEST:
        return (
            f"policy {settings.policy.name!r} plans for each sample of a dataset whose files are known beforehand; "
            "leave policy= out for a dataset of a class of its own"
        )
    return ""


class RecordedEngine(Engine):
    """An `Engine` whose workers make samples by the user's own code.

    Args:
        data: some files of the dataset, see `datasets.opened_files`.
        settings: of the loader.
        samples: number of samples in the dataset.
    """

    def __init__(self, data: Offloadable, settings: Settings, samples: int) -> None:
        self._samples = samples
        self._iteration = SharedArray(np.zeros(1, np.int64))
        self._headers = HeadersByKey(samples)
        super().__init__(data, settings)

    @property
    def samples(self) -> int:
        """See `Engine.samples`."""
        return self._samples

    def _dataset_of(self, run: Run) -> Any:
        """Return what workers ask the agent by: `AgentPictures`."""
        root = self.data.sources[0].root
        assert root is not None, "the files were opened on this host"
        roots = FileRoots(root, self.data.given_roots)
        furthest = _FURTHEST.get(type(self._settings.policy), ALL_STEPS)
        return AgentPictures(
            self._contact.routes,
            roots,
            self._statistics,
            self._shared,
            self._headers,
            self._iteration,
            furthest,
        )

    def _counts_each(self, epoch: Epoch, totals: Totals) -> float:
        """See `Engine._counts_each`: workers count pictures, of which a sample may have several, or none."""
        return totals.samples / epoch.delivered if totals.samples and epoch.delivered else 1.0

    def begin(
        self, number: int, lag: int, *, measuring: bool = False, share: float = 1.0, alone: bool = False
    ) -> Epoch:
        """See `Engine.begin`."""
        epoch = super().begin(number, lag, measuring=measuring, share=share, alone=alone)
        self._iteration.array[0] = epoch.iteration
        return epoch
