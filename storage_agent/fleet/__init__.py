"""Agents among agents: the entry in a shared folder, and Ray clusters."""
