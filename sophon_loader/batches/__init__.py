"""A batch on its way from a worker to the main process: in shared memory that is used again and again."""
