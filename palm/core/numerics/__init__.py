"""Tensors, devices, precision and random numbers."""
