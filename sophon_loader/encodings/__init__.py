"""How a value at the cut is written on the wire: one file per encoding, all of them lossless."""
