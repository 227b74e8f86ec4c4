"""What a loader worker does before its first batch."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from sophon_loader.datasets.look import look, owners, same_look
from sophon_loader.datasets.pipelines import Pipeline, pipeline_of, replaced_among, rests_on, same_pipeline
from sophon_loader.errors import ConfigError
from sophon_loader.host.system import end_with_parent


class WorkerInit:
    """Shows the user's dataset as `get_worker_info().dataset`, as DataLoader does, and runs the `worker_init_fn`.

    What a worker needs of the dataset has been taken out of it in the main process, so a `worker_init_fn` that changes
    just that is refused. So is a worker in which a function of torchvision, timm or Pillow was replaced that it has not
    been in the main process. To spawned workers the dataset goes only if there is a `worker_init_fn` that could look at
    it.

    Args:
        init: the user's `worker_init_fn`, or None.
        context: the loader's `multiprocessing_context`; None for the default.
    """

    def __init__(self, init: Callable[[int], None] | None, dataset: Any, context: Any) -> None:
        method = multiprocessing.get_start_method() if context is None else context.get_start_method()
        self._init = init
        self._is_forked = method == "fork"
        self._dataset = dataset if init is not None or self._is_forked else None
        # What is forked has the functions of this process.
        self._rests_on = () if init is None and self._is_forked else rests_on(dataset)
        self._replaced = {one.name for one in replaced_among(self._rests_on)}

    def __call__(self, worker: int) -> None:
        _leave_thread_pools()
        if not self._is_forked:
            # torch looks whether that process still is the parent which was it when this one had loaded its libraries:
            # a forkserver, which lives as long as this one, or whatever had taken over from a program killed by then.
            end_with_parent()
        info = get_worker_info()
        if self._dataset is not None:
            object.__setattr__(info, "dataset", self._dataset)  # which torch means nobody to assign to
        if self._init is None:
            if not self._is_forked:
                self._see_what_was_replaced()
            return
        before, pipelines = look(self._dataset), _pipelines(self._dataset)
        self._init(worker)
        self._see_what_was_replaced()
        assert info is not None
        if info.dataset is not self._dataset or not same_look(before, look(self._dataset)):
            self._refuse("samples, indices or loader")
        if not all(map(same_pipeline, pipelines, _pipelines(self._dataset))):
            self._refuse("transform")

    def _see_what_was_replaced(self) -> None:
        for one in replaced_among(self._rests_on):
            if one.name not in self._replaced:
                raise ConfigError(
                    f"a worker must have the library's functions that the main process has, got a worker in which "
                    f"{one}; replace it before the loop begins, where every process does so, or use torch's DataLoader"
                )

    def _refuse(self, what: str) -> None:
        raise ConfigError(
            f"worker_init_fn must not change the dataset's {what}, got {self._init!r}, which does so in a worker; make "
            "the change before the loop begins, where every process sees it, or use torch's DataLoader"
        )


def _leave_thread_pools() -> None:
    """Let this process end well where a thread of a ThreadPoolExecutor has forked it.

    That thread is its main one now. At its end the pool would join it, which no thread can do with itself: the process
    would end with status 1, and torch take that for a crash of the worker.
    """
    pools = sys.modules.get("concurrent.futures.thread")
    getattr(pools, "_threads_queues", {}).clear()


def _pipelines(dataset: Any) -> list[Pipeline]:
    return [pipeline_of(owner) for owner in owners(dataset)]
