"""A reader's tokenizer in the files that Hugging Face's libraries read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from palm.errors import PalmError
from palm.reader import Reader, SequenceLabelReader
from palm.storage import write_json, write_text
from palm.tokenizer import Tokenizer, WordPieceTokenizer


def save_tokenizer(reader: Reader, inputs: list[str], folder: Path, *, marks_text: bool) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and, for WordPiece, `vocab.txt`.

    They give the token ids that the reader gives: with special tokens, segments and its longest row.

    Args:
        reader: whose tokenizer and settings.
        inputs: what the model takes, by Hugging Face's names.
        folder: is there.
        marks_text: whether special tokens in a text are special, as `[MASK]` is for a masked language
            model; otherwise they are text, as they are for the reader.

    Raises:
        PalmError: the reader has no tokenizer that can be written.
    """
    tokenizer = tokenizer_of(reader)
    roles = {
        f"{role}_token": tokenizer.tokens([getattr(tokenizer, f"{role}_id")])[0]
        for role in ("pad", "unk", "cls", "sep", "mask")
    }
    _library(reader, tokenizer, roles).save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": reader.settings["max_seq_len"],
        "do_lower_case": reader.settings["do_lower_case"],
        "model_input_names": inputs,
        "split_special_tokens": not marks_text,
        "clean_up_tokenization_spaces": False,
        **roles,
    }
    write_json(folder / "tokenizer_config.json", config)
    if isinstance(tokenizer, WordPieceTokenizer):
        by_id = {number: token for token, number in tokenizer.to_library().get_vocab().items()}
        lines = [by_id.get(number, "") for number in range(tokenizer.vocab_size)]
        write_text(folder / "vocab.txt", "\n".join(lines) + "\n")


def tokenizer_of(reader: Reader) -> Tokenizer:
    """The reader's tokenizer.

    Raises:
        PalmError: it has none of palm's.
    """
    tokenizer = getattr(reader, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise PalmError(
            f"{type(reader).__name__} has no palm.tokenizer.Tokenizer; only such a reader is exported"
        )
    return tokenizer


def _library(reader: Reader, tokenizer: Tokenizer, roles: dict[str, str]) -> tokenizers.Tokenizer:
    library = tokenizer.to_library()
    library.no_truncation()
    library.no_padding()
    if getattr(reader, "for_cn", False):
        steps = [normalizers.Replace(" ", ""), library.normalizer]
        library.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    if _is_byte_level(library) and isinstance(reader, SequenceLabelReader):
        # A text's first word is cut as all others are.
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.post_processor = _special_tokens(tokenizer, library, roles["cls_token"], roles["sep_token"])
    library.add_special_tokens(list(roles.values()))
    return library


def _special_tokens(
    tokenizer: Tokenizer, library: tokenizers.Tokenizer, cls: str, sep: str
) -> processors.PostProcessor:
    """What puts special tokens around one text and two, as `palm.reader.sequence` does."""
    if isinstance(
        library.pre_tokenizer, pre_tokenizers.ByteLevel
    ):  # and takes blanks from the words' characters
        return processors.RobertaProcessing((sep, tokenizer.sep_id), (cls, tokenizer.cls_id))
    between = " ".join([sep] * tokenizer.separators)
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {between} $B:1 {sep}:1",
        special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
    )


def _is_byte_level(library: tokenizers.Tokenizer) -> bool:
    return isinstance(library.pre_tokenizer, pre_tokenizers.ByteLevel)
