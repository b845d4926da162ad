"""File formats of other frameworks, read without them."""
