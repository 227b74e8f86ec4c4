"""Ways to a sample, and where each of them stands."""
