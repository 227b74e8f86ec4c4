"""Ops, their random numbers, and the chains that run them at both ends of the wire."""
