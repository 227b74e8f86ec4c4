"""Access to what this host provides: cores, shared memory, files, host names, the terminal."""
