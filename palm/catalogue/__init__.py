"""What a configuration can name: every component that there is, with its settings."""
