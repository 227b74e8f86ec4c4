"""Parts of torch's inside that the package relies on: its workers, queues, iterators, and its profiler's ranges."""
