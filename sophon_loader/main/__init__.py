"""What runs in the main process only: the agreement with the agent, the plans, the epochs."""
