"""Programs: the steps, with numbers, that samples apply to their files, for every kind of file."""
