"""Reads files and answers questions that need no op, in threads of the broker's process."""
