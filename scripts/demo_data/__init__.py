"""The parts of the generator that writes the demos' data."""
