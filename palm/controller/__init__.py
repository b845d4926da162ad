"""The config-driven front door: YAML files to trained tasks and their predictions."""

from palm.controller.controller import Controller

__all__ = ["Controller"]
