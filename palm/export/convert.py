"""Conversion of a pretrained encoder from any directory that palm reads to Hugging Face's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from palm.core.component import path_problems, raise_any
from palm.core.io import check_target, new_directory
from palm.core.logging import logger
from palm.export.sources import save_tokenizer
from palm.pretrained import Report, pretrained_directory, read_directory
from palm.pretrained.families import write_hugging_face
from palm.pretrained.loading import fill_backbone
from palm.reader.tokenizer import load_tokenizer


def convert(source: str | Path, folder: str | Path, overwrite: bool = False) -> Report:
    """Write an encoder's weights (bit for bit), configuration and vocabulary in Hugging Face's layout.

    `source` is a directory that `palm.load_backbone` reads.

    Raises:
        ConfigError: the configuration of the encoder is incomplete or wrong.
        StorageError: `source` cannot be read, `transformers` has no such encoder, or `folder` is in use.
    """
    raise_any(path_problems(source=source, folder=folder))
    folder = Path(folder)
    check_target(folder, overwrite, [source])
    directory = read_directory(pretrained_directory(source))
    # Every parameter is written, also a pooler that the directory's pooling does not use.
    backbone = replace(directory, settings={**directory.settings, "pooling": "cls"}).build()
    report = fill_backbone(backbone, directory.given, directory.path)
    state = backbone.state_dict()
    weights = {name: directory.given.weights.get(name, state[name]) for name in report.loaded}
    with new_directory(folder, overwrite) as part:
        write_hugging_face(weights, backbone, part, directory.given.original)
        if directory.vocab_path is not None:
            tokenizer = load_tokenizer(directory.vocab_path, directory.do_lower_case)
            save_tokenizer(tokenizer, part, backbone, longest=backbone.max_tokens, marks_text=True)
    logger.info("%s written to %s", type(backbone).__name__, folder)
    return report
