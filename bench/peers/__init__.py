"""Other systems and ours over the same link; `python -m bench.peers`. Imports nothing: some run without torch."""
