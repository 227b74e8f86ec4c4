"""Lossless encodings of a value at the cut for the wire, one file per encoding."""
