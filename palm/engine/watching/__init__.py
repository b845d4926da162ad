"""Observers of a run: history, log lines, progress bars, trackers."""
