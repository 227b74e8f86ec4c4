"""Parts that a loader makes of its dataset: an engine that offloads it, or the reason why it is loaded plainly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from sophon_loader.datasets.look import look, same_look
from sophon_loader.datasets.opened_files import opened_files
from sophon_loader.datasets.protocol import NotOffloadable
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.epoch.epoch import Epoch, Observer
from sophon_loader.errors import warn_user
from sophon_loader.host.system import cores_available
from sophon_loader.logs import log_line
from sophon_loader.order.loader_state import LoaderState, Numbers
from sophon_loader.order.order import Order
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.report.report import Report
from sophon_loader.report.run_log import RunLog
from sophon_loader.run.comparison import unlike_its_parts
from sophon_loader.run.engine import Engine
from sophon_loader.run.epoch_log import LoggedEpoch, log_report
from sophon_loader.run.outcome import NO_AGENT
from sophon_loader.run.recorded_engine import RecordedEngine, why_no_agent
from sophon_loader.run.recording import Recording, StreamedOrder
from sophon_loader.run.recording_trial import NO_PICTURES, tried_to_record
from sophon_loader.run.trial_process import NotTried
from sophon_loader.run.workforce import AutoWorkers, own_cores
from sophon_loader.settings import Settings

log = logging.getLogger(__name__)


class Parts:
    """Parts of a loader's dataset, which is taken apart again when it has changed.

    Args:
        loader: the user's; not kept, since it owns this.
        settings: of the loader.
        warn: True to warn a user who gave an agent if the dataset cannot be taken apart.

    Attributes:
        engine: drives the epochs; None for a dataset that is loaded plainly.
    """

    def __init__(self, loader: DataLoader[Any], settings: Settings, *, warn: bool = True) -> None:
        self._settings = settings
        self._compared = False
        self._log = None if settings.options.log is None else RunLog(str(settings.options.log))
        self._logged_plain: Report | None = None
        self.engine: Engine | None = None
        self._plain_report = Report(settings.policy.name)
        self._recording: Recording | None = None
        self._untouched: tuple[str, ...] = ()
        """Notes on what the user has asked for, and a dataset that cannot be taken apart does not have."""
        self._tried_to_record = False
        self._owed_warning = ""
        self._take_apart(loader, warn=warn)

    def _take_apart(self, loader: DataLoader[Any], *, warn: bool = True) -> None:
        """Look at the dataset, and make the engine that it needs; see `_run_plainly` for `warn`."""
        self._look = look(loader.dataset)
        self.engine = None
        self._recording, self._tried_to_record, self._why_not_recorded = None, False, ""
        try:
            data = offloadable(loader.dataset)
        except NotOffloadable as reason:
            self._run_plainly(loader, str(reason), warn=warn)
            return
        self.engine = Engine(data, self._settings)

    def _run_plainly(self, loader: DataLoader[Any], why: str, *, warn: bool = True) -> None:
        """Turn the loader into a plain DataLoader from now on, and warn a user who gave an agent."""
        if self.engine is not None:
            self.engine.close()
        self.engine = None
        device = self._settings.tail
        untouched = () if device is None else (f"no op runs on {device}, because the dataset cannot be taken apart",)
        if self._settings.options.cache is not None:
            untouched = (*untouched, "no file is kept on this host, because the dataset cannot be taken apart")
        if isinstance(loader.num_workers, AutoWorkers):  # whose number its random numbers depend on
            loader.num_workers = AutoWorkers(max(1, int(own_cores(cores_available()))))
            untouched = (
                *untouched,
                f"num_workers is {loader.num_workers}, from the number of cores, and stays at that",
            )
        self._plain_report = Report(
            self._settings.policy.name,
            NO_AGENT if self._settings.agent is None else why,
            notes=(f"runs as a plain DataLoader: {why}", *untouched),
        )
        self._untouched = untouched
        log.info(log_line("plain DataLoader", reason=why))
        cannot = why_no_agent(self._settings) if self._may_record else ""
        text = f"Nothing is offloaded: {why}{cannot and '; '}{cannot}."
        self._owed_warning = text if warn and self._settings.agent is not None else ""
        if cannot or not self._may_record:
            self._warn()

    def _warn(self) -> None:
        """Warn a user who gave an agent that is of no use, once."""
        owed, self._owed_warning = self._owed_warning, ""
        if owed:
            warn_user(owed)

    @property
    def _may_record(self) -> bool:
        """True if the options let pictures of a dataset of any class be deferred."""
        return self._settings.options.record and self._settings.options.fused

    def follow(self, loader: DataLoader[Any], order: Order) -> None:
        """Check that the dataset still is the one that was taken apart, and gives the same as its parts.

        Args:
            loader: the user's.
            order: of the loader's samplers.
        """
        if not same_look(self._look, look(loader.dataset)):
            if self.engine is not None:
                self.engine.close()
            self._compared = False
            self._take_apart(loader)
        if self.engine is not None and not self._compared:
            self._compared = True
            try:
                unlike = unlike_its_parts(self.engine.data, order)
            except NotTried as why:
                unlike = f"the dataset could not be compared with its parts, because {why}"
                self._tried_to_record = True  # as little as that could be tried
            if unlike is not None:
                self._run_plainly(loader, unlike)
        if self.engine is None:
            self._try_to_record(loader, order)

    def _try_to_record(self, loader: DataLoader[Any], order: Order) -> None:
        """Check once if pictures that the dataset opens can be deferred, and asked of the agent."""
        options = self._settings.options
        if self._tried_to_record or not self._may_record:
            self._warn()
            return
        self._tried_to_record = True
        why_not, files = tried_to_record(loader, order)
        if not why_not:
            engine = self._engine_for(files, loader.dataset)
            self._recording = Recording(
                reuse_memory=options.reuse_batch_memory, engine=engine, untouched=self._untouched
            )
        if self.asking is not None:
            self._owed_warning = ""
        self._warn()
        log.info(log_line("dataset of a class of its own", recorded=not why_not, reason=why_not))
        self._why_not_recorded = why_not
        if why_not not in ("", NO_PICTURES):
            self._plain_report = replace(self._plain_report, notes=(*self._plain_report.notes, _undeferred(why_not)))

    def _engine_for(self, files: Sequence[str], dataset: Any) -> RecordedEngine | None:
        """Return what asks the agent for pictures; None without an agent, or if it is of no use."""
        settings = self._settings
        if settings.agent is None or why_no_agent(settings):
            return None
        data = opened_files(files, dataset, settings.options.roots)
        if data is None:
            if settings.options.roots:
                told = ", ".join(settings.options.roots)
                self._owed_warning = (
                    f"Nothing is offloaded: its first samples open no picture below {told}, which are the roots of "
                    "OffloadOptions; add the folder that they lie in."
                )
            return None
        samples = len(dataset) if hasattr(dataset, "__len__") else 0
        return RecordedEngine(data, self._asking_settings, samples)

    @property
    def _asking_settings(self) -> Settings:
        """Settings of what asks the agent for pictures: without what is only possible for known files and ops."""
        return replace(self._settings, tail=None, options=replace(self._settings.options, cache=None, cache_gb=None))

    @property
    def asking(self) -> RecordedEngine | None:
        """What asks an agent for the pictures of a dataset of any class; None if nothing does."""
        return None if self._recording is None else self._recording.engine

    @property
    def numbers(self) -> Numbers:
        """Source of the samples' random numbers, as far as dataset and options decide."""
        if self.engine is not None:
            return "op"
        return "sample" if self._settings.seed is not None and self._opens_pictures else "torch"

    @property
    def _opens_pictures(self) -> bool:
        """True if samples open pictures, deferred or not, as far as that is known."""
        return self._tried_to_record and self._why_not_recorded != NO_PICTURES

    def recorded(self, loader: DataLoader[Any], place: LoaderState) -> AbstractContextManager[None]:
        """Within the block, workers that a plain loader starts defer the pictures that its dataset opens, if they may.

        They also seed each sample's random numbers, if those are the place's.
        """
        if self._recording is None and place.numbers == "sample":  # as a state says, also where no picture is deferred
            self._recording = Recording(reuse_memory=False, defers=False)
        if self._recording is None:
            return nullcontext()
        order = None
        if place.numbers == "sample":
            dataset: Any = loader.dataset
            samples = len(dataset) if hasattr(dataset, "__len__") else 0
            order = StreamedOrder(place.order, samples, Seed(place.drawn_seed()))
        return self._recording.shown_to(loader, order)

    @property
    def streamed_order(self) -> StreamedOrder | None:
        """Order that torch's loader is to read now in place of the user's samplers; None for these."""
        return None if self._recording is None else self._recording.order

    @property
    def plain_report(self) -> Report:
        """Report of a loader without an engine."""
        recording = self._recording
        return recording.told_by(self._plain_report) if recording and recording.defers else self._plain_report

    @property
    def about_pictures(self) -> list[str]:
        """Return sentences on the pictures that the dataset of a loader without an engine opens."""
        if self._recording is not None and self._recording.defers:
            return self._recording.notes()
        return [_undeferred(self._why_not_recorded)] if self._why_not_recorded else []

    def observer(self, epoch: Epoch) -> Observer:
        """Return the observer of an epoch that an agent has a part in: its engine, and the log if there is one."""
        engine = self.engine or self.asking
        assert engine is not None, "a plain loader's epochs tell nobody"
        if self._log is None:
            return engine
        report = (lambda: self.plain_report) if self.engine is None else engine.report
        about = f"{type(engine.data.whole).__name__} of {engine.samples:,}"
        return LoggedEpoch(engine, epoch, self._log, report, about)

    def log_plain(self) -> None:
        """Log a plain DataLoader's epoch as it begins: only its report, which says why, once."""
        if self._log is not None and self.asking is None and self._logged_plain is not self._plain_report:
            self._logged_plain = self._plain_report
            log_report(self._log, self._plain_report, ended=False)

    def close(self) -> None:
        """End everything that the engine has started, and close the log; a later epoch begins again."""
        if self.engine is not None:
            self.engine.close()
        if self._recording is not None:
            self._recording.close()
        if self._log is not None:
            self._log.close()

    def leave_to_parent(self) -> None:
        """Begin with a new engine in a forked copy of the process: all that runs is the parent's."""
        if self.engine is not None:
            self.engine = Engine(self.engine.data, self._settings)
        if self._recording is not None and self._recording.engine is not None:
            asking = self._recording.engine
            self._recording.engine = RecordedEngine(asking.data, self._asking_settings, asking.samples)


def _undeferred(why: str) -> str:
    return f"no picture is deferred: {why}"
