"""What an epoch did, and how it is told."""
