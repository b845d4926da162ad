"""Export of trained models to other programs: to Hugging Face's layout and to ONNX graphs."""

from palm.export.hugging_face import to_hugging_face
from palm.export.onnx_model import to_onnx

__all__ = ["to_hugging_face", "to_onnx"]
