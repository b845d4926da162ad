"""The same tasks trained in several ways, over several seeds, to see whether they help each other."""
