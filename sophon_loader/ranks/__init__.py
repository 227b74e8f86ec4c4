"""The ranks of one training: who they are, from which seeds they draw, and what they tell each other."""
