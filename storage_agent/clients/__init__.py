"""Loaders at the door: the socket, who is let in, which connections there are, how fast replies leave."""
