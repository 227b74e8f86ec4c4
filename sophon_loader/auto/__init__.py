"""Prices by the moment: what the policy `auto` knows, works out and shares with its workers."""
