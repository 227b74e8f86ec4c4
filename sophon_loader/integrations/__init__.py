"""What frameworks need that make loaders of classes of their own; each module loads its framework."""
