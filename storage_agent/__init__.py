"""The process near the storage: reads files, runs the first ops of a pipeline, answers over ZeroMQ."""
