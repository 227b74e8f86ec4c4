"""The messages that ask an agent for some samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sophon_loader.client.drawn_program import ALL_STEPS, DrawnProgram
from sophon_loader.client.wanted import Ask, Wanted
from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.wire.limits import MAX_UINT
from sophon_loader.wire.messages import Fetch, FetchPrograms, Item, ProgramItem

if TYPE_CHECKING:
    from sophon_loader.client.session import Terms


def messages_of(terms: Terms, digest: str, ask: Ask, key: Callable[[Wanted], str]) -> list[Fetch | FetchPrograms]:
    """The messages for an instruction: one for the samples that have programs, one for all others.

    Args:
        terms: agreed on with the agent.
        digest: of the source's registration.
        ask: the samples, with their request numbers.
        key: what the agent calls a sample's file.
    """
    keeps_info = terms.keep_info[ask.source]
    allowed = [*terms.allowed, *((ANY_PART,) if trusted() else ()), *((INFO_CLASSES,) if keeps_info else ())]
    items: list[Item] = []
    programs: list[ProgramItem] = []
    prices: list[float] = []
    for number, one in ask.items:
        prices = prices or list(one.prices or ())
        if one.drawn is None:
            items.append(Item(number, one.sample, one.occurrence, one.cut, one.encoding, key(one)))
        else:
            programs.append(_program_item(number, one, one.drawn, key(one)))
    found: list[Fetch | FetchPrograms] = []
    if programs:
        found.append(
            FetchPrograms(
                terms.address.export,
                keep_info=keeps_info,
                dry=False,
                allowed=allowed,
                items=programs,
                prices=prices,
                pixels_by=pixels_by(),
            )
        )
    if items:
        found.append(
            Fetch(
                export=terms.address.export,
                digest=digest,
                seed=terms.seed.number,
                epoch=ask.batch.epoch & MAX_UINT,  # as `op_seed` does: any int is an epoch
                keep_info=keeps_info,
                dry=False,
                allowed=allowed,
                items=items,
                prices=prices,
            )
        )
    return found


def _program_item(number: int, wanted: Wanted, drawn: DrawnProgram, key: str) -> ProgramItem:
    segment = ALL_STEPS if wanted.prices and wanted.cut else drawn.segment_of(wanted.cut)
    assert segment is not None, "else it is not asked for by its program"
    return ProgramItem(number, segment, wanted.encoding, key, drawn.file_nbytes, drawn.program)
