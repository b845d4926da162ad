"""Tools for every floor: errors, the contract between components, files, logging."""
