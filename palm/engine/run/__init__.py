"""A run and its directory: checkpoints, evaluation, saved models, stages."""
