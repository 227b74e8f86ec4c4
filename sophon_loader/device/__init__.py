"""What runs on the accelerator or beside it: the tail, batches prefetched to it, and the time of its steps."""
