"""Workers that belong to the process which started them, and to no forked copy of it."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from torch.utils.data import DataLoader, _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from sophon_loader.errors import ConfigError, NoRoom

T_co = TypeVar("T_co", covariant=True)


class OwnedIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, which a forked copy of this process neither reads nor ends.

    torch's own one asks such a copy's workers whether they live, which multiprocessing refuses ("can only test a child
    process"), or ends those of the parent, with which it shares the queues.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._owner_pid = os.getpid()
        self._lost: Exception | None = None
        super().__init__(loader)

    def _next_data(self) -> Any:
        if self._owner_pid != os.getpid():
            raise ConfigError(
                f"an iterator over workers must be read in the process that began it ({self._owner_pid}), got process "
                f"{os.getpid()}, a fork of that; call iter(loader) in the fork"
            )
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        except Exception as error:
            _break_circle(error)
            raise

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> Any:
        """What has come from the workers. When that fails, a batch is lost, which must not be waited for."""
        if self._lost is not None:
            raise NoRoom(f"workers must be restarted after an error, got: {self._lost}; begin another iteration")
        try:
            return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        except Exception as error:
            self._lost = error.with_traceback(None)
            raise

    def _shutdown_workers(self) -> None:
        if self._owner_pid == os.getpid():
            super()._shutdown_workers()
        elif self._worker_pids_set:  # by its address, which another iterator may have next
            self._worker_pids_set = False
            _utils.signal_handling._remove_worker_pids(id(self))


def _break_circle(error: Exception) -> None:
    """Let go of the frame of torch that raises a worker's error and refers to it, too: with the traceback that is a
    circle, which would hold the workers until a garbage collection.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is not None and frames.tb_frame.f_code.co_name == "reraise":
        frames.tb_frame.clear()


class OwnedDataLoader(DataLoader[T_co]):
    """torch's DataLoader, whose workers belong to the process which started them."""

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return OwnedIterator(self)
