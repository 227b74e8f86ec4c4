"""How much memory a worker may take: the kernel refuses it more, and one that is near its limit is replaced."""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")
NEARLY = 0.75
"""Of its limit, after which a worker ends when it has answered: what it still holds will not be given back."""


class Memory:
    """The limit of this process, which begins where it stands now: what it shares with its parent does not count.

    Linux counts private writable memory (`RLIMIT_DATA`). An op that wants more gets a MemoryError, or its process ends.

    Args:
        most_nbytes: that may be added to what there is.

    Example:
        >>> memory = Memory(2 << 30)
        >>> memory.short
        False
    """

    def __init__(self, most_nbytes: int) -> None:
        self._begun_nbytes = _data_nbytes()
        self._most_nbytes = most_nbytes
        if self._begun_nbytes:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            wanted = self._begun_nbytes + most_nbytes
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    @property
    def short(self) -> bool:
        """Whether most of it is taken; False where that cannot be told."""
        return _data_nbytes() > self._begun_nbytes + NEARLY * self._most_nbytes if self._begun_nbytes else False


def _data_nbytes() -> int:
    """Private writable memory of this process; 0 where that cannot be told."""
    try:
        text = _STATUS.read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmData:")]
    return int(found[0]) << 10 if found else 0
