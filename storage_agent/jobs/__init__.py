"""What is asked for, sample by sample, and whose turn it is. Pure."""
