"""What loader workers run, and what crosses between them and the main process."""
