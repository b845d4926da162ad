"""Text processing: questions, labels, tokenizers, windows and masks."""
