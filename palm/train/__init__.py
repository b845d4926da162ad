"""One training run: tasks, batches, model, loop."""
