"""What the package relies on inside torch: its workers, their queues, its iterators, the ranges of its profiler."""
