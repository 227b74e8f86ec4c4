"""Several agents, met and shared out: what a loader agrees on with them, and which is asked for which sample."""
