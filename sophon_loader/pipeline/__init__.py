"""Ops, their randomness and regions, and the chain that runs them; used at both ends of the wire."""
