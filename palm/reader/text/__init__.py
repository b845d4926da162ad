"""From files to tokens: file formats, tokenizers, labels, windows, masks."""
