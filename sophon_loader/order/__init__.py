"""Which sample is next, and how a loader goes on where a state was taken."""
