"""The report of an epoch: its values, table, page and log."""
