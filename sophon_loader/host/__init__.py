"""What this host gives: cores, memory that processes share, files, names of hosts, a terminal."""
