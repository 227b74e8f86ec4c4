"""How the C library's allocator treats freed payloads: it keeps some memory for the next ones.

By default glibc gives a freed block of some 100 KB back to the kernel, which has to clear and map it again, page by
page, for the next payload. `tests/e2e/test_agent_memory.py` counts these page faults.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of malloc.h."""
KEPT_NBYTES = 64 << 20
"""Free memory at the end of a heap beyond which it is given back; each thread has one heap at most."""
LARGE_NBYTES = 32 << 20
"""From this size on, a block is mapped by itself and given back at once: glibc takes no larger threshold."""


def keep_freed_memory(most_nbytes: int = KEPT_NBYTES) -> None:
    """Have glibc keep freed memory of this process; other C libraries are left as they are.

    Args:
        most_nbytes: what each heap may keep, besides the gaps between its blocks.

    Example:
        >>> keep_freed_memory()
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl and macOS have none
        return
    mallopt(_MMAP_THRESHOLD, LARGE_NBYTES)
    mallopt(_TRIM_THRESHOLD, most_nbytes)
