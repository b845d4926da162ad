"""Encoded rows: in memory, on disk, and as batches."""
