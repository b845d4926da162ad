"""Reports of runs: plots, and a page with the errors of the models."""
