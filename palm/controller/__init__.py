"""The config-driven API: from YAML files to trained tasks and their predictions."""
