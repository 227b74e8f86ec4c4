"""Whole files that are kept on this host: in which segments, which ones, and whether they still are the agent's."""
