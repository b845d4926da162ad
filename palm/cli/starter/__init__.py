"""New projects: a configuration, tasks, a few rows of data and the commands to run them."""
