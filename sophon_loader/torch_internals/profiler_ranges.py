"""Ranges of torch's profiler within the time that a training waits for its loader.

torch's own range, `enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__`, is around the first two. Profilers
look for the start of that name, and TensorBoard's for its end, too. The third range lies outside of torch's and has
both, so that it counts as the loader's. The first two have the start alone, so that nothing is counted twice.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import _profiler_enabled as profiling
from torch.autograd.profiler import record_function

WAITING = "enumerate(DataLoader)#waiting"
"""No batch has come."""
RECEIVING = "enumerate(DataLoader)#receiving"
"""A batch has come, and is unpickled: its memory is mapped."""
FINISHING = "enumerate(DataLoader)#finishing.__next__"
"""The last ops run on a whole batch (`tail=`)."""
_NOTHING: AbstractContextManager[object] = nullcontext()


def profiler_range(name: str) -> AbstractContextManager[object]:
    """A range around a block. Without a profiler it does nothing: to enter one of torch's takes 5 us even then.

    Args:
        name: of it.
    """
    return record_function(name) if profiling() else _NOTHING
