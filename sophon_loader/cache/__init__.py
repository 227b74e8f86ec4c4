"""A cache of whole files on this host: which files it holds, in which segments, and whether they are still current."""
