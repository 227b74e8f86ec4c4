"""What every other room of the agent may use: settings, the log, counts for Prometheus, limits of this process."""
