"""What the tests of desk and staff ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sophon_loader.wire.messages import CHEAPEST, Item
from storage_agent.jobs.jobs import FetchHeader, Job


def job(number: int, client: bytes = b"c", digest: str = "p", meant_for: float | None = None) -> Job:
    """A job whose id and key say which it is; its choice is left open if it is said which cores its prices are for."""
    header = FetchHeader(client, "d", digest, 1, 0, False, False, ["file"], received_s=0.0, upkeep_s=0.0)
    if meant_for is None:
        return Job(header, Item(number, number, 0, 2, "pixels", f"{number}.jpg"))
    header = replace(header, prices=[1.0, 1.0, 1.0, meant_for])
    return Job(header, Item(number, number, 0, 2, CHEAPEST, f"{number}.jpg"))


def ids(jobs: Sequence[Job]) -> list[int]:
    """The ids of jobs."""
    return [one.item.id for one in jobs]
