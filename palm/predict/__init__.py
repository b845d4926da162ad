"""Prediction with a saved or a trained model."""
