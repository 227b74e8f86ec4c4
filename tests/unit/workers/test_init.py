"""What a loader worker does before its first batch."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sophon_loader.workers.init import WorkerInit


def test_a_worker_that_a_thread_of_a_pool_has_forked_ends_well() -> None:
    process = multiprocessing.get_context("fork").Process(target=WorkerInit(None, None, None), args=(0,))

    def start_and_wait() -> Any:
        process.start()
        process.join(60)
        return process.exitcode

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(start_and_wait).result() == 0
