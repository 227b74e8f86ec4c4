"""What fetching processes have counted, as the main process adds it up."""

from __future__ import annotations

from storage_agent.stores.buckets.fetcher import Fetcher


def test_counts_of_a_process_only_grow_and_outlive_it() -> None:
    fetcher = Fetcher()
    assert (fetcher.slow_downs, fetcher.cpu_s) == (0, 0.0)
    fetcher.told(7, 2, 0.5)
    fetcher.told(7, 1, 0.25)  # an answer that another thread has taken out of its socket later
    assert (fetcher.slow_downs, fetcher.cpu_s) == (2, 0.5)
    fetcher.told(8, 1, 0.125)
    assert (fetcher.slow_downs, fetcher.cpu_s) == (3, 0.625)
