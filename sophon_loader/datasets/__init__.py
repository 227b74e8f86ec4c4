"""Datasets that can be offloaded, taken apart into what a loader worker needs."""
