"""Measurements: what the four resources can do (rates), and what each sample weighs and costs (samples)."""
