"""Every private name of torch, with its guard: the rest of the package uses what torch documents."""
