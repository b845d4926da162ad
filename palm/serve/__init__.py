"""Saved models behind HTTP: `palm serve`, and its client `palm.Client`."""
