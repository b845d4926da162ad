"""A project to begin with: a configuration, tasks, a few rows of data and the commands that run it."""
