"""Configures the C library's allocator to retain some freed memory for the next payloads.

By default glibc returns a freed block of some 100 KB to the kernel. For the next payload it is cleared and mapped
again, page by page. `tests/e2e/test_agent_memory.py` counts these page faults.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of malloc.h."""
KEPT_NBYTES = 64 << 20
"""Free bytes at the end of a heap above which they are returned to the kernel; each thread has at most one heap."""
LARGE_NBYTES = 32 << 20
"""Size from which a block is mapped separately and returned at once, bytes; glibc accepts no larger threshold."""


def keep_freed_memory(most_nbytes: int = KEPT_NBYTES) -> None:
    """Let glibc retain this process's freed memory; other C libraries are left unchanged.

    Args:
        most_nbytes: maximum for each heap, in addition to the gaps between its blocks.

    Example:
        >>> keep_freed_memory()
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl and macOS have none
        return
    mallopt(_MMAP_THRESHOLD, LARGE_NBYTES)
    mallopt(_TRIM_THRESHOLD, most_nbytes)
