"""Routes to a sample, rosters that name them, and the standing of each."""
