"""Driver of epochs in the main process: the engine, its runs, torch's loader within, progress and logs."""
