"""The limits of messages and of what they describe, stated in docs/wire.md; both ends refuse what is beyond them."""

from __future__ import annotations

MAX_HEADER_NBYTES = 8 << 20
"""Of a header frame."""
MAX_PAYLOAD_NBYTES = 1 << 30
"""Of a payload frame, and so of a file: one that does not fit a payload cannot be served."""
MAX_TEXT_LENGTH = 1 << 16
"""Characters of one text field."""
MAX_OPS = 64
"""Ops of a pipeline, op 0 included."""
MAX_DESCRIPTION_NBYTES = 4 << 20
"""Of a pipeline's description. A transform with a matrix of its own has megabytes of parameters."""
MAX_REGISTRATION_NBYTES = MAX_DESCRIPTION_NBYTES + (4 << 10)
"""A description, with room for the names and versions of the software that goes along with it."""
MAX_PIPELINES = 256
"""Pipelines that an agent remembers; it forgets the oldest first."""
MAX_REGISTERING = 64
"""Pipelines that wait to be built by a worker."""
MAX_KEYS = 4096
"""Of one AskSizes."""
MAX_KEY_NBYTES = 4096
"""The longest path that Linux opens (PATH_MAX)."""
MAX_UINT = (1 << 64) - 1
"""The largest integer that msgpack can write. What only selects random numbers is cut to its bits before it is sent."""
