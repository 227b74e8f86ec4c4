"""One iteration over a loader as a value: the batches that it delivers, and the facts for its report."""
