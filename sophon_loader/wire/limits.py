"""Limits of messages and of what they describe, as in docs/wire.md; both ends refuse anything beyond them."""

from __future__ import annotations

MAX_HEADER_NBYTES = 8 << 20
"""Bytes of an agent's header frame: a listing may name many classes."""
MAX_HEADER_VALUES = 1 << 20
"""Values in an agent's header, counted before any is built."""
MAX_REQUEST_NBYTES = 2 << 20
"""Bytes of a loader's header frame: 1024 samples with keys of 2000 bytes each."""
MAX_REQUEST_VALUES = 1 << 14
"""Values in a loader's header: 1024 samples take 7200, and 4096 keys take 4096."""
MAX_PAYLOAD_NBYTES = 1 << 30
"""Bytes of a payload, and therefore of a file: a larger file cannot be served."""
MAX_LISTING_NBYTES = 1 << 30
"""Bytes of an unpacked listing, about the names of twenty million files; a few KB could unpack to any size."""
MAX_FRAME_NBYTES = 1 << 20
"""Bytes of one frame of a payload. ZeroMQ counts a whole frame as a sign of life, but no part of a frame that arrives
slowly."""
MAX_TEXT_LENGTH = 1 << 16
"""Characters of one text field, and bytes of one field of bytes."""
MAX_OPS = 64
"""Ops of a pipeline, op 0 included."""
MAX_DESCRIPTION_NBYTES = 4 << 20
"""Bytes of a pipeline's description. A transform with a matrix of its own has megabytes of parameters."""
MAX_DESCRIPTION_VALUES = 1 << 15
"""Values in a description. An op that holds ops takes about ten for each, built at 0.2 ms and 3 KB per op."""
MAX_REGISTRATION_NBYTES = MAX_DESCRIPTION_NBYTES + (4 << 10)
"""Bytes of a registration: a description, and room for the names and versions of the loader's software."""
MAX_PIPELINES = 256
"""Pipelines that an agent remembers."""
MAX_REGISTERING = 64
"""Pipelines that wait for a worker to build them."""
MAX_KEYS = 4096
"""Keys of one AskSizes."""
MAX_HEADERS = 1024
"""Keys of one AskHeaders, for which the agent reads the beginning of each file."""
MAX_KEY_NBYTES = 4096
"""Bytes of the longest path that Linux opens (PATH_MAX)."""
MAX_UINT = (1 << 64) - 1
"""Largest integer that msgpack can write. A number that only selects random numbers is truncated to these bits."""
