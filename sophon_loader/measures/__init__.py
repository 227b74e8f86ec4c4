"""Counters of a running loader, and the conclusions drawn from them. Workers write them, and the main process reads."""
