"""Tables in the formats that people have: files, records with their places, columns."""
