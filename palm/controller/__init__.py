"""The config-driven front door: YAML files to trained tasks and their predictions."""
