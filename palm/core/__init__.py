"""Shared foundations: errors, the contract between components, files, logging."""
