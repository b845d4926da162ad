"""Whether tasks help each other: the same tasks trained in several ways, over several seeds."""
