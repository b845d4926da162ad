"""Reports of runs: plots, and pages with the errors of the models."""
