"""What is counted while a loader runs, and what is concluded from it. Written by workers, read by the main process."""
