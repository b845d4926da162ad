"""Trained models for other programs: as Hugging Face lays them out, and as ONNX graphs."""

from palm.export.hugging_face import to_hugging_face
from palm.export.onnx_model import to_onnx

__all__ = ["to_hugging_face", "to_onnx"]
