"""What a loader registers with an agent: a pipeline, and the software that must make its pixels.

The software is part of it so that an agent which was upgraded and restarted does not run ops for a loader that had
agreed with the old one.
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
"""Of a registration: the description is one of them, names and versions of software are the others."""


def registration_of(chain: Chain, software: dict[str, str]) -> bytes:
    """Msgpack of `[software, description]`; with ops of torch's, the software says what these compute here.

    Args:
        chain: what is registered, as its `description`.
        software: the loader's, as `software.software` returns it.
    """
    computed = {MATHS: maths()} if chain.describable > chain.pillow_stages else {}
    packed: bytes = msgpack.packb([{**software, **computed}, chain.description])
    return packed


@dataclass(frozen=True)
class Registration:
    """A pipeline as this process can serve it.

    Args:
        chain: its leading ops as far as they are known here; Decode alone where random numbers could differ.
        reach: how many of them may run here.
        why: the reason, if these are not all.
        left: names of Pillow's formats that the loader opens by other code than this process; their files are sent.

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
        """The inverse of `registration_of`, on another host.

        Args:
            data: the bytes.
            max_px: of the chain.

        Raises:
            PipelineError: it is none, or an op refuses its parameters.
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
    """See that a file's format is opened by the same code here and at the loader.

    Args:
        data: the file.
        left: of the registration.

    Raises:
        OpenedOtherwise: it is not.
    """
    if not left:
        return
    try:
        with Image.open(io.BytesIO(data)) as opened:
            found = opened.format
    except Exception:  # whoever decodes it says so
        return
    if found in left:
        raise OpenedOtherwise(f"{found} files must be opened by equal code at both ends, got other code at the loader")
