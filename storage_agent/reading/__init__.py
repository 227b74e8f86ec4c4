"""Threads of the broker's process: what needs no op is read and answered here."""
