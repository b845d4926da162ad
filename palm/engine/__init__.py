"""A run: tasks, batches, model, training loop, and observers."""
