"""Trained models as ONNX graphs, and onnxruntime in the place of torch."""
