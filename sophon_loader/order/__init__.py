"""Decides which sample is next, and lets a loader continue where a state was taken."""
