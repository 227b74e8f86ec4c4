"""Registrations of a loader with an agent: a pipeline, and the software that must make its pixels.

The software is included so that an agent that was upgraded and restarted runs no ops for a loader that agreed with the
old one.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace

import msgpack
from PIL import Image

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.chain import DECODE, Chain, chain_from
from sophon_loader.pipeline.maths import MATHS, maths
from sophon_loader.pipeline.software import DECODERS, not_of_switches, unlike
from sophon_loader.pipeline.told import OPENERS, OpenedOtherwise, opened_otherwise
from sophon_loader.wire.counting import holds_more

_MAX_VALUES = 1000
"""Maximum values in a registration: its description, and names and versions of software."""


def registration_of(chain: Chain, software: dict[str, str]) -> bytes:
    """Return msgpack of `[software, description]`. With ops of torch, the software includes the digest of what torch
    computes here.

    Args:
        chain: pipeline to register, as its `description`.
        software: the loader's software, from `software.software`.
    """
    computed = {MATHS: maths()} if chain.describable > chain.pillow_stages else {}
    packed: bytes = msgpack.packb([{**software, **computed}, chain.description])
    return packed


@dataclass(frozen=True)
class Registration:
    """A pipeline, and what this process can serve of it.

    Args:
        chain: its leading ops that are known here; Decode alone if random numbers could differ.
        reach: number of ops that may run here.
        why: reason why these are not all.
        left: names of Pillow's formats that the loader opens by other code than this process; such files are sent.

    Example:
        >>> served = Registration.from_bytes(registration_of(chain_of(transform), software()))
        >>> served.reach
        4
    """

    chain: Chain
    reach: int
    why: str
    left: frozenset[str] = frozenset()

    @staticmethod
    def from_bytes(data: bytes, max_px: float = math.inf) -> Registration:
        """Read what `registration_of` wrote on another host.

        Args:
            data: the bytes.
            max_px: limit for the chain; see `Chain`.

        Raises:
            PipelineError: the bytes are no registration, or an op refuses its parameters.
        """
        try:
            if holds_more(data, _MAX_VALUES):
                raise PipelineError(f"a registration must hold at most {_MAX_VALUES} values, got more")
            software, description = msgpack.unpackb(data)
            differ = unlike(software)
            left = opened_otherwise(software.get(OPENERS, ""))
            computes_alike = MATHS not in software or software[MATHS] == maths()
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise PipelineError(f"a registration must be [software, description]: {error}") from error
        if not isinstance(description, bytes):
            raise PipelineError(f"a description must be bytes, got {type(description).__name__}")
        chain = replace(chain_from(description), max_px=max_px)
        if others := not_of_switches(differ):
            why = f"the loader agreed with an agent that had other software: {', '.join(others)} differ"
            return Registration(chain if DECODERS.issuperset(others) else Chain((DECODE,)), 0, why, left)
        differ += [] if computes_alike else [MATHS]
        if differ:
            why = f"torch has other settings here than at the loader: {', '.join(differ)}"
            return Registration(chain, chain.pillow_stages, why, left)
        return Registration(chain, len(chain), f"this agent knows only the first {len(chain)} ops", left)


def see_opened_alike(data: bytes, left: frozenset[str]) -> None:
    """Check that a file's format is opened by the same code here and at the loader.

    Args:
        data: the file.
        left: `Registration.left`.

    Raises:
        OpenedOtherwise: the loader opens it by other code.
    """
    if not left:
        return
    try:
        with Image.open(io.BytesIO(data)) as opened:
            found = opened.format
    except Exception:  # the decoding reports it
        return
    if found in left:
        raise OpenedOtherwise(f"{found} files must be opened by equal code at both ends, got other code at the loader")
