"""A run: tasks, their batches, the model, the loop, and what watches it."""
