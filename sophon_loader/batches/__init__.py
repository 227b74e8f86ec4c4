"""Carries a batch from a worker to the main process, in shared memory that is reused."""
