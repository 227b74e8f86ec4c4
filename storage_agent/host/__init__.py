"""Shared parts of the agent: settings, the log, counters for Prometheus, limits of this process."""
