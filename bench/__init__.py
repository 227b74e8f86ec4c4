"""Measurements; not part of the installed packages."""
