"""What the tests of desk and staff ask for."""

from __future__ import annotations

from sophon_loader.wire.messages import Item
from storage_agent.jobs import FetchHeader, Job


def job(number: int, client: bytes = b"c", digest: str = "p") -> Job:
    """A job whose id and key say which it is."""
    header = FetchHeader(client, "d", digest, 1, 0, False, False, ["file"], received_s=0.0, upkeep_s=0.0)
    return Job(header, Item(number, number, 0, 2, "pixels", f"{number}.jpg"))


def ids(jobs: list[Job]) -> list[int]:
    """The ids of jobs."""
    return [one.item.id for one in jobs]
