"""Pretrained weights of Hugging Face, Paddle and palm models."""
