"""Work on the accelerator: the tail, batches prefetched to it, and the time of the training steps."""
