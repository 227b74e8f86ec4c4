"""One iteration over a loader as a value: what it delivers, and what is reported of it."""
