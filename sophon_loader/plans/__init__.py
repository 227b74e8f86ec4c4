"""The papers' policies: a plan for each sample, and what must be measured for it. Only `run/` imports this room."""
