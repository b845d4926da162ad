"""Settings tried out: over a grid, or chosen by Optuna, and the best of them as a configuration."""
