"""The worker processes: what starts and watches them, what runs in them, and the channel between."""
