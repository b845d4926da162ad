"""A run in its directory: checkpoints, evaluation, saved models, stages."""
