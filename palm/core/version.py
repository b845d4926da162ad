"""The version of the distribution, kept here only."""

__version__ = "0.1.0"
