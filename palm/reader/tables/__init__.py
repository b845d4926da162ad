"""Tables in common file formats: their files, rows and columns."""
