"""Experiments of many runs: comparisons of ways to train, and searches; each run is its own process."""
