"""Limits on descriptors and shared memory. Batches take torch's way before either runs out."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Any

from torch.utils._pytree import tree_leaves

from sophon_loader.errors import NoRoom

SMALL_UP_TO, LARGE_UP_TO, ALL_UP_TO = 1 / 4, 1 / 2, 3 / 4
"""Shares of the limit of open files. Memory is kept for reuse while new descriptors have numbers below the first share
(small pieces) or the second (large ones). From the third on, all of it is released. A new descriptor has the lowest
free number, so nothing needs to be counted."""
KEPT_SHARE = 1 / 4
"""Share of the host's shared memory that all workers of a loader may keep together."""
FREE_SHARE = 1 / 2
"""Share of the host's shared memory that must be free for a worker to keep more. With half of that, it keeps none."""
RESERVED = 8
"""Descriptors that stay free in a worker, to send others to the main process and to read files."""
PER_TENSOR = 2
"""Descriptors that a tensor takes in a worker until the main process has it."""
_SHARED = "/dev/shm"
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Room:
    """Limits of this process and host.

    Args:
        files: limit of open files, instead of the process's own.
        shared: (total, free) bytes of shared memory, instead of the host's.
    """

    files: int | None = None
    shared: tuple[int, int] | None = None

    @property
    def most_files(self) -> int:
        """Maximum number of files that this process may have open."""
        if self.files is not None:
            return self.files
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return _NO_LIMIT if limit == resource.RLIM_INFINITY else limit

    @property
    def shared_nbytes(self) -> tuple[int, int]:
        """(Total, free) bytes of the host's shared memory; 2**62 each if not known."""
        if self.shared is not None:
            return self.shared
        try:
            found = os.statvfs(_SHARED)
        except OSError:
            return _NO_LIMIT, _NO_LIMIT
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail

    def keeps(self, descriptor: int, *, small: bool) -> bool:
        """True if memory whose new descriptor has this number may be kept for reuse."""
        return descriptor < self.most_files * (SMALL_UP_TO if small else LARGE_UP_TO)

    def lets_go(self, descriptor: int) -> bool:
        """True if memory for reuse must be released, because a new descriptor has this number."""
        return descriptor >= self.most_files * ALL_UP_TO

    def check_files(self, batch: Any) -> None:
        """Check that a worker can send a batch to the main process, which would otherwise wait for it without end.

        Args:
            batch: the batch to be sent.

        Raises:
            NoRoom: too few descriptors are left.
        """
        most = self.most_files
        if lowest_free() < most * SMALL_UP_TO:
            return
        need, used = RESERVED + PER_TENSOR * len(tree_leaves(batch)), open_files()
        if used + need > most:
            raise NoRoom(
                f"the limit of open files must leave a worker {need} files for a batch, got a limit of {most} with "
                f"{used} open; raise it (`ulimit -n`), or use fewer workers"
            )

    def no_memory(self, error: Exception) -> NoRoom | None:
        """Return an explained error if shared memory or descriptors ran out; None for another error."""
        if "shared memory" not in str(error):
            return None
        total, free = (nbytes / 2**20 for nbytes in self.shared_nbytes)
        return NoRoom(
            f"shared memory must have room for a batch, got {free:.0f} MiB free of {total:.0f} MiB in {_SHARED} and a "
            f"limit of {self.most_files} open files; make it larger (`docker run --shm-size=1g`), raise `ulimit -n`, "
            f"or use fewer workers, a smaller prefetch_factor or smaller batches: {str(error).strip().splitlines()[-1]}"
        )


def open_files() -> int:
    """Return the number of files that this process has open."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # but for the listing itself
    except OSError:
        return lowest_free()


def lowest_free() -> int:
    """Return the number that a new descriptor would get; the limit if none can be opened."""
    try:
        descriptor = os.dup(0)
    except OSError as error:
        if error.errno == 9:
            return 0  # no standard input: that place is free
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.close(descriptor)
    return descriptor
