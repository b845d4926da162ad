"""A pretrained encoder from any directory that palm reads to one that other programs read, or palm itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from palm.backbone import Backbone
from palm.core.checks import choice_problems, path_problems, raise_any
from palm.core.files.atomic_dir import check_target, new_directory
from palm.core.logging import logger
from palm.downloader import pretrained_directory
from palm.export.tokenizer_files import input_names, save_tokenizer
from palm.pretrained import ModelDirectory, Report, read_directory
from palm.pretrained.loading import fill_backbone
from palm.pretrained.writing import write_hugging_face, write_palm
from palm.reader.text.subwords import load_tokenizer

WRITERS: dict[str, Callable[[Mapping[str, Tensor], Backbone, Path], None]] = {
    "hf": write_hugging_face,
    "palm": write_palm,
}
"""What a directory can be converted to -> what writes weights and sizes."""


def convert(source: str | Path, folder: str | Path, to: str = "hf", overwrite: bool = False) -> Report:
    """Write an encoder's weights, sizes and vocabulary as another program wants them, bit by bit the same.

    `source` is what `palm.load_backbone` reads; `to` is 'hf' for `transformers`, or 'palm' for our own names.

    Raises:
        ConfigError: another `to`, or sizes that are missing or wrong.
        StorageError: `source` cannot be read, `transformers` has no such encoder, or `folder` is in use.
    """
    raise_any(path_problems(source=source, folder=folder))
    raise_any(choice_problems(tuple(WRITERS), to=to))
    folder = Path(folder)
    check_target(folder, overwrite, [source])
    directory = read_directory(pretrained_directory(source))
    backbone = directory.build()
    report = fill_backbone(backbone, directory.given, directory.path)
    state = backbone.state_dict()
    weights = {name: directory.given.weights.get(name, state[name]) for name in report.loaded}
    with new_directory(folder, overwrite) as part:
        WRITERS[to](weights, backbone, part)
        _save_vocabulary(directory, backbone, part)
    logger.info("%s written to %s", type(backbone).__name__, folder)
    return report


def _save_vocabulary(directory: ModelDirectory, backbone: Backbone, folder: Path) -> None:
    if directory.vocab_path is not None:
        save_tokenizer(
            load_tokenizer(directory.vocab_path, directory.do_lower_case),
            folder,
            inputs=input_names(backbone),
            longest=backbone.max_tokens,
            do_lower_case=directory.do_lower_case,
            marks_text=True,
        )
