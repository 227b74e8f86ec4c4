"""The message that asks an agent for some samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sophon_loader.client.wanted import Ask, Wanted
from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.wire.limits import MAX_UINT
from sophon_loader.wire.messages import Fetch, Item

if TYPE_CHECKING:
    from sophon_loader.client.session import Terms


def fetch_of(terms: Terms, digest: str, ask: Ask, key: Callable[[Wanted], str]) -> Fetch:
    """The message for an instruction.

    Args:
        terms: agreed on with the agent.
        digest: of the source's registration.
        ask: the samples, with their request numbers.
        key: what the agent calls a sample's file.
    """
    items = ask.items
    return Fetch(
        export=terms.address.export,
        digest=digest,
        seed=terms.seed.number,
        epoch=ask.batch.epoch & MAX_UINT,  # as `op_seed` does: any int is an epoch
        keep_info=terms.keep_info[ask.source],
        dry=False,
        allowed=[
            *terms.allowed,
            *((ANY_PART,) if trusted() else ()),
            *((INFO_CLASSES,) if terms.keep_info[ask.source] else ()),
        ],
        items=[Item(number, one.sample, one.occurrence, one.cut, one.encoding, key(one)) for number, one in items],
        prices=list(next((one.prices for _, one in items if one.prices), ())),
    )
