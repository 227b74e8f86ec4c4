"""Adapters for frameworks that make loaders of their own classes; each module loads its framework."""
