"""The papers' policies: a plan for each sample, and all that only they measure. Nothing that `auto` needs."""
