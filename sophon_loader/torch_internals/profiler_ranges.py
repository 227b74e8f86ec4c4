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
"""Name of the time until a batch arrives."""
RECEIVING = "enumerate(DataLoader)#receiving"
"""Name of the time in which a batch that has arrived is unpickled: its memory is mapped."""
FINISHING = "enumerate(DataLoader)#finishing.__next__"
"""Name of the time in which the last ops run on a whole batch (`tail=`)."""
_NOTHING: AbstractContextManager[object] = nullcontext()


def profiler_range(name: str) -> AbstractContextManager[object]:
    """Return a range around a block. Without a profiler it does nothing, since entering one of torch's takes 5 us.

    Args:
        name: name of the range.
    """
    return record_function(name) if profiling() else _NOTHING
