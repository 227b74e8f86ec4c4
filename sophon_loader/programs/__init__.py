"""What a sample does to its file, in numbers: programs, for every kind of file and at both ends of the wire."""
