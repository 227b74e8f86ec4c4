"""The limits of messages and of what they describe, stated in docs/wire.md; both ends refuse what is beyond them."""

from __future__ import annotations

MAX_HEADER_NBYTES = 8 << 20
"""Of a header frame from an agent: a listing may name many classes."""
MAX_HEADER_VALUES = 1 << 20
"""Values in it, counted before any is made."""
MAX_REQUEST_NBYTES = 2 << 20
"""Of a header frame from a loader: 1024 samples with keys of 2000 bytes each."""
MAX_REQUEST_VALUES = 1 << 14
"""Values in it: 1024 samples take 7200, 4096 keys as many as they are."""
MAX_PAYLOAD_NBYTES = 1 << 30
"""Of a payload, and so of a file: one that does not fit a payload cannot be served."""
MAX_LISTING_NBYTES = 1 << 30
"""Most that a listing may unpack to, about the names of twenty million files; a few KB could unpack to any size."""
MAX_FRAME_NBYTES = 1 << 20
"""Of one frame of it: ZeroMQ takes a whole frame as a sign of life, and no part of one, however slowly it comes."""
MAX_TEXT_LENGTH = 1 << 16
"""Characters of one text field, and bytes of one field of bytes."""
MAX_OPS = 64
"""Ops of a pipeline, op 0 included."""
MAX_DESCRIPTION_NBYTES = 4 << 20
"""Of a pipeline's description. A transform with a matrix of its own has megabytes of parameters."""
MAX_DESCRIPTION_VALUES = 1 << 15
"""Values in it: an op that holds ops takes about ten for each, and they are built at 0.2 ms and 3 KB each."""
MAX_REGISTRATION_NBYTES = MAX_DESCRIPTION_NBYTES + (4 << 10)
"""A description, with room for the names and versions of the software that goes along with it."""
MAX_PIPELINES = 256
"""Pipelines that an agent remembers."""
MAX_REGISTERING = 64
"""Pipelines that wait to be built by a worker."""
MAX_KEYS = 4096
"""Of one AskSizes."""
MAX_HEADERS = 1024
"""Keys of one AskHeaders: the beginning of each file is read for it."""
MAX_KEY_NBYTES = 4096
"""The longest path that Linux opens (PATH_MAX)."""
MAX_UINT = (1 << 64) - 1
"""The largest integer that msgpack can write. What only selects random numbers is cut to its bits before it is sent."""
