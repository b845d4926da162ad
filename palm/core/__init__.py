"""What every floor may use: errors, the contract between components, files, logging."""
