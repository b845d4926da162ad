"""Tokenizer files for Hugging Face's libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from palm.backbone import Backbone
from palm.core.errors import PalmError
from palm.core.io import write_json, write_text
from palm.reader import Reader
from palm.reader.text.tokenizer import Tokenizer
from palm.reader.words import WordReader

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
    if getattr(reader, "for_cn", False):  # such readers remove spaces first
        steps = [normalizers.Replace(" ", ""), library.normalizer]
        library.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    # Readers of words tokenize a text's first word like all others.
    _add_special_tokens(library, tokenizer, adds_prefix_space=isinstance(reader, WordReader))
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


def _add_special_tokens(library: tokenizers.Tokenizer, tokenizer: Tokenizer, adds_prefix_space: bool) -> None:
    """Make it add special tokens around one text or two, as `Tokenizer.row` does."""
    cls, sep = tokenizer.tokens([tokenizer.cls_id, tokenizer.sep_id])
    is_byte_level = isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel)
    if is_byte_level and adds_prefix_space:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    middle = tokenizer.tokens(tokenizer.between)
    special = {cls: tokenizer.cls_id, sep: tokenizer.sep_id}
    special |= dict(zip(middle, tokenizer.between, strict=True))
    around = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {' '.join(middle)} $B:1 {sep}:1",
        special_tokens=list(special.items()),
    )
    if is_byte_level:
        # The first step removes spaces from the offsets of words.
        library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), around])
    else:
        library.post_processor = around
