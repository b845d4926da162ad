"""A tokenizer in the files that Hugging Face's libraries read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from palm.backbone import Backbone
from palm.core.errors import PalmError
from palm.core.files.fs import write_json, write_text
from palm.reader import Reader
from palm.reader.text.tokenizer import Tokenizer, WordPieceTokenizer
from palm.reader.words import WordReader

ROLES = ("pad", "unk", "cls", "sep", "mask")
"""Of special tokens, as Hugging Face calls them."""


def save_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    inputs: list[str],
    longest: int | None,
    do_lower_case: bool,
    marks_text: bool,
    strips_blanks: bool = False,
    cuts_words: bool = False,
) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and, for WordPiece, `vocab.txt`.

    Args:
        tokenizer: as a reader has it; the files give the same token ids, special tokens and segments.
        folder: is there.
        inputs: what the model takes, by Hugging Face's names.
        longest: tokens of the longest row; None for any.
        do_lower_case: as the tokenizer has it.
        marks_text: whether special tokens in a text are special, as `[MASK]` is for a masked language
            model; otherwise they are text, as they are for readers.
        strips_blanks: take blanks out of texts first.
        cuts_words: cut a text's first word as all others, as for a reader of words.
    """
    roles = {f"{role}_token": tokenizer.tokens([getattr(tokenizer, f"{role}_id")])[0] for role in ROLES}
    library = tokenizer.to_library()
    library.no_truncation()
    library.no_padding()
    if strips_blanks:
        steps = [normalizers.Replace(" ", ""), library.normalizer]
        library.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    _frame(library, tokenizer, cuts_words)
    library.add_special_tokens(list(roles.values()))
    write_text(folder / "tokenizer.json", library.to_str(pretty=True))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": do_lower_case,
        "model_input_names": inputs,
        "split_special_tokens": not marks_text,
        "clean_up_tokenization_spaces": False,
        **({} if longest is None else {"model_max_length": longest}),
        **roles,
    }
    write_json(folder / "tokenizer_config.json", config)
    if isinstance(tokenizer, WordPieceTokenizer):
        _save_vocabulary(tokenizer, folder / "vocab.txt")


def _save_vocabulary(tokenizer: Tokenizer, file: Path) -> None:
    by_id = {number: token for token, number in tokenizer.to_library().get_vocab().items()}
    lines = [by_id.get(number, "") for number in range(tokenizer.vocab_size)]
    write_text(file, "\n".join(lines) + "\n")


def save_reader(reader: Reader, backbone: Backbone, folder: Path, *, marks_text: bool) -> None:
    """Write the tokenizer of a reader as `save_tokenizer` does.

    Raises:
        PalmError: it has no tokenizer that can be written.
    """
    save_tokenizer(
        load_tokenizer(reader),
        folder,
        inputs=input_names(backbone),
        longest=reader.settings["max_seq_len"],
        do_lower_case=reader.settings["do_lower_case"],
        marks_text=marks_text,
        strips_blanks=getattr(reader, "for_cn", False),
        cuts_words=isinstance(reader, WordReader),
    )


def load_tokenizer(reader: Reader) -> Tokenizer:
    """Return the reader's tokenizer.

    Raises:
        PalmError: it has none of palm's.
    """
    tokenizer = getattr(reader, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise PalmError(f"{type(reader).__name__} has no tokenizer of palm's; only such a reader is exported")
    return tokenizer


def input_names(backbone: Backbone) -> list[str]:
    """Return the tokenizer's outputs that a model on this encoder reads, by Hugging Face's names."""
    segments = ["token_type_ids"] if "segment_ids" in backbone.inputs_attr else []
    return ["input_ids", *segments, "attention_mask"]


def _frame(library: tokenizers.Tokenizer, tokenizer: Tokenizer, cuts_words: bool) -> None:
    """Let it put special tokens around one text and two, as `Tokenizer.row` does."""
    cls, sep = tokenizer.tokens([tokenizer.cls_id, tokenizer.sep_id])
    is_byte_level = isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel)
    if is_byte_level and cuts_words:
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
        # The first step takes blanks from the words' characters.
        library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), around])
    else:
        library.post_processor = around
