"""Queues of requested samples, and the clients' turns. Pure."""
