"""What exports have in common: tokenizers, and descriptions of components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from palm.backbone import Backbone
from palm.core.errors import PalmError
from palm.core.io import write_json, write_text
from palm.predict.inference import InferenceModel
from palm.reader import Reader
from palm.reader.tokenizer import Tokenizer
from palm.reader.words import WordReader
from palm.train.saved_model import NO_SHARED_ENCODER

ROLES = ("pad", "unk", "cls", "sep", "mask")
"""Roles of special tokens, with Hugging Face's names."""


def save_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    backbone: Backbone,
    *,
    longest: int | None,
    marks_text: bool,
    reader: Reader | None = None,
) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and, for WordPiece, `vocab.txt`.

    Args:
        tokenizer: the files result in the same token ids, special tokens and segments.
        folder: an existing folder.
        backbone: the encoder of the model.
        longest: maximum number of tokens in a row; None for no limit.
        marks_text: whether special tokens in a text are parsed as such, like `[MASK]` for a masked language
            model; otherwise they are treated as text, as readers do.
        reader: the reader whose texts are tokenized, if there is one.
    """
    roles = {f"{role}_token": tokenizer.tokens([getattr(tokenizer, f"{role}_id")])[0] for role in ROLES}
    library = tokenizer.to_library()
    if getattr(reader, "for_cn", False) and not isinstance(reader, WordReader):  # spaces are removed first
        steps = [normalizers.Replace(" ", ""), library.normalizer]
        library.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    # Readers of words tokenize a text's first word like all others.
    if isinstance(reader, WordReader) and isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel):
        described = library.to_str().replace('"add_prefix_space":false', '"add_prefix_space":true')
        library = tokenizers.Tokenizer.from_str(described)
    library.add_special_tokens(list(roles.values()))
    write_text(folder / "tokenizer.json", library.to_str(pretty=True))
    segments = ["token_type_ids"] if "segment_ids" in backbone.inputs_attr else []
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "split_special_tokens": not marks_text,
        "clean_up_tokenization_spaces": False,
        **({} if longest is None else {"model_max_length": longest}),
        **roles,
    }
    write_json(folder / "tokenizer_config.json", config)
    if tokenizer.is_wordpiece:
        tokens = {number: token for token, number in tokenizer.ids.items()}
        lines = [tokens.get(number, "") for number in range(tokenizer.vocab_size)]
        write_text(folder / "vocab.txt", "\n".join(lines) + "\n")


def save_reader(reader: Reader, backbone: Backbone, folder: Path, *, marks_text: bool) -> None:
    """Write the tokenizer of a reader as `save_tokenizer` does.

    Raises:
        PalmError: the reader has no tokenizer that can be written.
    """
    longest = reader.settings["max_seq_len"]
    tokenizer = load_tokenizer(reader)
    save_tokenizer(tokenizer, folder, backbone, longest=longest, marks_text=marks_text, reader=reader)


def load_tokenizer(reader: Reader) -> Tokenizer:
    """Return the reader's tokenizer.

    Raises:
        PalmError: it is not one of palm's tokenizers.
    """
    tokenizer = getattr(reader, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise PalmError(f"{type(reader).__name__} has no palm tokenizer, which is needed for an export")
    return tokenizer


def check_alike(first: InferenceModel, other: InferenceModel) -> None:
    """Check that two tasks have the same encoder and tokenize texts in the same way.

    Raises:
        PalmError: they do not, so they cannot share a graph.
    """
    if first.backbone is not other.backbone:
        raise PalmError(f"{first.task!r} and {other.task!r} {NO_SHARED_ENCODER}")
    library, theirs = (load_tokenizer(model.reader).to_library() for model in (first, other))
    if library.to_str() != theirs.to_str():
        raise PalmError(
            f"{first.task!r} and {other.task!r} tokenize texts differently (vocab_path, do_lower_case), so "
            "they cannot share a graph; export them one by one"
        )
    numbers = [model.reader.settings.get("task_id", 0) for model in (first, other)]
    if "task_ids" in first.backbone.inputs_attr and numbers[0] != numbers[1]:
        raise PalmError(
            f"{first.task!r} and {other.task!r} have different task_id, {numbers[0]} and {numbers[1]}, so "
            "they cannot share an encoder's outputs; export them one by one"
        )
