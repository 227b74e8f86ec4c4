"""What tests share: agents, loaders, pictures, examples."""
