"""Tar and zip files as the files of an export: indexed once by a process of its own, then read member by member."""
