"""Which datasets can be offloaded, and what of them a loader worker needs."""
