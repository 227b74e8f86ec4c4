"""The command line of `sophon-agent`: its options, and the answers of its smaller commands."""
