"""Trained models as ONNX graphs, and prediction with onnxruntime instead of torch."""
