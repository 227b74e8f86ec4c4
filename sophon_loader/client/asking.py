"""The messages that ask an agent for some samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sophon_loader.client.drawn_program import DrawnProgram
from sophon_loader.client.wanted import Ask, Wanted
from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.wire.limits import MAX_REQUEST_NBYTES, MAX_UINT
from sophon_loader.wire.messages import Fetch, FetchPrograms, Item, ProgramItem

if TYPE_CHECKING:
    from sophon_loader.client.session import Terms

Asked = TypeVar("Asked")
_OTHERS_NBYTES = 128
"""Most bytes of the short fields of an item: numbers, the name of an encoding."""
_RESERVED_NBYTES = 64 << 10
"""Bytes of a request for the fields that all its items share: an export, names of encodings, versions."""


def messages_of(terms: Terms, digest: str, ask: Ask, key: Callable[[Wanted], str]) -> list[Fetch | FetchPrograms]:
    """The messages for an instruction: for the samples that have programs, then for all others; one of each if it is
    not too long.

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
    by_programs = [
        FetchPrograms(
            terms.address.export,
            keep_info=keeps_info,
            dry=False,
            allowed=allowed,
            items=some,
            prices=prices,
            pixels_by=pixels_by(),
        )
        for some in in_messages(programs, lambda one: key_nbytes(one.key) + len(one.program))
    ]
    by_pipelines = [
        Fetch(
            export=terms.address.export,
            digest=digest,
            seed=terms.seed.number,
            epoch=ask.batch.epoch & MAX_UINT,  # as `op_seed` does: any int is an epoch
            keep_info=keeps_info,
            dry=False,
            allowed=allowed,
            items=some,
            prices=prices,
        )
        for some in in_messages(items, lambda one: key_nbytes(one.key))
    ]
    return [*by_programs, *by_pipelines]


def in_messages(items: Sequence[Asked], nbytes: Callable[[Asked], int]) -> list[list[Asked]]:
    """The items, as many together as one request may hold.

    Args:
        items: any number.
        nbytes: size of the long fields of one.
    """
    found: list[list[Asked]] = []
    room = 0
    for item in items:
        needed = nbytes(item) + _OTHERS_NBYTES
        if needed > room:
            found.append([])
            room = MAX_REQUEST_NBYTES - _RESERVED_NBYTES
        room -= needed
        found[-1].append(item)
    return found


def key_nbytes(key: str) -> int:
    """Most bytes of a key in UTF-8, without encoding it."""
    return len(key) if key.isascii() else 4 * len(key)


def _program_item(number: int, wanted: Wanted, drawn: DrawnProgram, key: str) -> ProgramItem:
    # One of several agents may reach less far than the program, which was drawn for all of them.
    segment = drawn.last_segment(wanted.cut) if wanted.prices else drawn.segment_of(wanted.cut)
    assert segment is not None, "else it is not asked for by its program"
    return ProgramItem(number, segment, wanted.encoding, key, drawn.file_nbytes, drawn.program)
