"""Connections of loaders: the socket, who is let in, which connections exist, and how fast replies leave."""
