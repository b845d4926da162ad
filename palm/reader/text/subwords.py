"""Load the tokenizer for a vocabulary file, and tokenizers other than WordPiece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from palm.core.errors import ConfigError, DataError
from palm.core.files.untrusted import MAX_JSON, parse_json, read_bytes, wrap_read_errors
from palm.reader.text.tokenizer import (
    MAX_ID,
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
    Tokens,
    WordPieceTokenizer,
)

ROBERTA_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
SEPARATORS = {SPECIAL_TOKENS: 1, ROBERTA_TOKENS: 2}
"""Special tokens -> the number of separators between two texts, `[SEP]` or `</s></s>`."""

_UNKNOWN = "a A \u1234 \U0001f9ff"
"""A text with characters that few vocabularies have."""

MAX_GROWTH = 1000
"""The largest factor by which a normalizer may lengthen a text; published ones need 2."""

MERGES = "merges.txt"
SETTINGS = "tokenizer_config.json"


_TOKENIZERS: WeakValueDictionary[tuple[str, ...], WordPieceTokenizer | JsonTokenizer | ByteLevelTokenizer]
_TOKENIZERS = WeakValueDictionary()
"""The tokenizers in use, by the content of their files: tasks and saved models mostly share a vocabulary,
and BERT's takes 11 MiB and 0.1 CPU seconds. Paths would not do, as every saved model has its own copy."""


def load_tokenizer(vocab_path: Path, do_lower_case: bool = False) -> Tokenizer:
    """The tokenizer of a vocabulary file, which is shared by all files with the same content.

    Args:
        vocab_path: WordPiece's vocabulary, one token per line; or RoBERTa's, a JSON object token -> id,
            with `merges.txt` in the same folder; or a `tokenizer.json` of Hugging Face's library.
        do_lower_case: lower-case texts and strip accents; only for WordPiece, others have their own setting.

    Raises:
        DataError: the vocabulary cannot be read, or lacks special tokens.
        ConfigError: `do_lower_case` for a cased vocabulary in JSON.
    """
    path = Path(vocab_path)
    is_wordpiece = path.suffix != ".json"
    files = [path] if is_wordpiece else [path, path.with_name(MERGES), path.with_name(SETTINGS)]
    found = [file for file in files if file.is_file()]
    with wrap_read_errors(path, " the vocabulary", DataError):
        parts = [hashlib.sha256(read_bytes(file, 2 * MAX_JSON)).hexdigest() for file in found]
    # A tokenizer stores the paths of its other files, so these are part of the key.
    key = (f"{is_wordpiece and do_lower_case}", *parts, *(str(file.absolute()) for file in found[1:]))
    tokenizer = _TOKENIZERS.get(key)
    if tokenizer is None:
        if is_wordpiece:
            tokenizer = WordPieceTokenizer(path, do_lower_case)
        else:
            tokenizer = JsonTokenizer(path) if "model" in _read(path) else ByteLevelTokenizer(path)
        _TOKENIZERS[key] = tokenizer
    if do_lower_case and not (isinstance(tokenizer, WordPieceTokenizer) or tokenizer.is_lower_case):
        raise ConfigError(f"do_lower_case: the vocabulary {str(vocab_path)!r} is cased; remove do_lower_case")
    return tokenizer


class ByteLevelTokenizer(Tokenizer):
    """RoBERTa's tokenizer: byte-level byte-pair encoding.

    A space belongs to the word after it, so a word is tokenized differently inside a text than at its start.

    Args:
        vocab_path: a JSON object token -> id, with `merges.txt` in the same folder, and optionally
            `tokenizer_config.json`, whose `add_prefix_space` puts a space before every text.

    Raises:
        DataError: a file cannot be read, or special tokens are missing.

    Source: Radford et al., 2019, section 2.2; Liu et al., 2019, arXiv:1907.11692, section 4.4.
    """

    is_lower_case = False

    def __init__(self, vocab_path: Path) -> None:
        merges = vocab_path.with_name(MERGES)
        settings = vocab_path.with_name(SETTINGS)
        if not merges.is_file():
            raise DataError(f"{vocab_path}: the vocabulary needs {MERGES} in the same folder")
        found = _read(settings) if settings.is_file() else {}
        prefix_space = bool(found.get("add_prefix_space"))
        with wrap_read_errors(vocab_path, f" the vocabulary with its {MERGES}", DataError):
            read_bytes(merges)
            pipeline = tokenizers.Tokenizer(models.BPE.from_file(str(vocab_path), str(merges)))
        pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        pipeline.post_processor = processors.ByteLevel(add_prefix_space=prefix_space, trim_offsets=True)
        ids = pipeline.get_vocab()
        special, between = _special_of(ids, vocab_path)
        super().__init__(pipeline, ids, special, between, before_word=" ")
        self.companions = (merges, settings) if found else (merges,)


class JsonTokenizer(Tokenizer):
    """The tokenizer described by a `tokenizer.json`.

    Args:
        path: the file.

    Raises:
        DataError: the file cannot be read, or special tokens are missing.
    """

    def __init__(self, path: Path) -> None:
        self._content = content = _read(path)
        with wrap_read_errors(path, " the tokenizer", DataError):
            special = [token["content"] for token in content.get("added_tokens", ()) if token.get("special")]
            hidden = {token: f"\ufdd0{token}" for token in special}
            _check_growth(content.get("normalizer"))
            whole = tokenizers.Tokenizer.from_str(json.dumps(content))
            ids = whole.get_vocab()
            if content["model"].get("type") == "Unigram":  # would recognize special tokens inside a text
                pieces = [[hidden.get(piece, piece), score] for piece, score in content["model"]["vocab"]]
                added = [
                    {**token, "content": hidden.get(token["content"], token["content"])}
                    for token in content["added_tokens"]
                ]
                model = {**content["model"], "vocab": pieces}
                content = {**content, "added_tokens": added, "model": model}
            pipeline = tokenizers.Tokenizer.from_str(json.dumps(content))
            pipeline.encode_special_tokens = True  # as text
            pipeline.no_truncation()
            pipeline.no_padding()
            normalizer = pipeline.normalizer
            self.is_lower_case = normalizer is not None and normalizer.normalize_str("A") == "a"
            # Fails if the model's token for unknown words is not in its vocabulary.
            pipeline.encode(_UNKNOWN, add_special_tokens=False)
        after = json.dumps(content.get("post_processor"))
        self._trims_offsets = '"ByteLevel"' in after or '"RobertaProcessing"' in after
        roles, between = _special_of(ids, path, whole)
        super().__init__(pipeline, ids, roles, between, before_word=_before_word(pipeline))

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Tokens]:
        encoded = super().encode_with_offsets(texts)
        if self._trims_offsets:
            return encoded
        trimmed = []
        for tokens, text in zip(encoded, texts, strict=True):
            # Some tokens, such as SentencePiece's, begin with spaces, which are not part of a word.
            is_space = np.fromiter((*(character.isspace() for character in text), False), dtype=bool)
            starts = tokens.starts.copy()
            while (leading := is_space[starts] & (starts < tokens.ends)).any():
                starts += leading
            trimmed.append(Tokens(tokens.ids, starts, tokens.ends))
        return trimmed

    def to_library(self) -> tokenizers.Tokenizer:
        """The tokenizer of the file, in which special tokens are not hidden."""
        return tokenizers.Tokenizer.from_str(json.dumps(self._content))


def _special_of(
    ids: dict[str, int], path: Path, whole: tokenizers.Tokenizer | None = None
) -> tuple[SpecialTokens, list[int]]:
    """Find the special tokens of a vocabulary, and the ids between two texts.

    Args:
        ids: token -> id.
        path: the vocabulary file; `tokenizer_config.json` in the same folder may name tokens.
        whole: a tokenizer that adds special tokens to texts; None for a vocabulary without such rules.

    Raises:
        DataError: an id is too large, or there are no tokens that start and end texts or pad rows.
    """
    if ids and max(ids.values()) >= MAX_ID:
        raise DataError(f"{path}: the id {max(ids.values())} should be below {MAX_ID}")
    lacking = {special: [token for token in special if token not in ids] for special in SEPARATORS}
    special = min(lacking, key=lambda special: len(lacking[special]))
    if lacking[special]:
        ruled = whole and _special_by_rules(ids, path, whole)
        if not ruled:
            raise DataError(
                f"{path}: the vocabulary lacks {', '.join(lacking[special])}; it should be that of a BERT or "
                "RoBERTa model, or a tokenizer.json that adds its own special tokens to texts"
            )
        special = ruled
    between = _between(whole) if whole is not None else None
    return special, between or [ids[special.sep]] * SEPARATORS.get(special, 1)


def _special_by_rules(ids: dict[str, int], path: Path, whole: tokenizers.Tokenizer) -> SpecialTokens | None:
    """Find the special tokens that are added to a text; `tokenizer_config.json` names the others."""
    around = whole.encode("a")
    marks = around.special_tokens_mask
    if len(marks) < 3 or not (marks[0] and marks[-1]):
        return None
    config = path.with_name(SETTINGS)
    settings = _read(config) if config.is_file() else {}
    named = {}
    for role, usual in (("pad", "<pad>"), ("unk", "<unk>"), ("mask", "<mask>")):
        token = settings.get(f"{role}_token", usual)
        named[role] = str(token.get("content") if isinstance(token, dict) else token)
    if named["pad"] not in ids:
        return None
    unknown = named["unk"] if named["unk"] in ids else named["pad"]  # unused in a byte-level vocabulary
    return SpecialTokens(named["pad"], unknown, around.tokens[0], around.tokens[-1], named["mask"])


def _between(whole: tokenizers.Tokenizer) -> list[int]:
    """The ids of the special tokens between two texts; empty without such a rule."""
    pair = whole.encode("a", "a")
    inner = [
        number for number, mark in zip(pair.ids[1:-1], pair.special_tokens_mask[1:-1], strict=True) if mark
    ]
    return inner if pair.special_tokens_mask[:1] == [1] else []


def _before_word(pipeline: tokenizers.Tokenizer) -> str:
    """The prefix with which a word is tokenized as inside a text: a space if tokens contain spaces."""
    inside = pipeline.encode("a a", add_special_tokens=False).ids
    single = pipeline.encode("a", add_special_tokens=False).ids
    return "" if inside == single + single else " "


def _read(path: Path) -> dict[str, Any]:
    with wrap_read_errors(path, " the vocabulary", DataError):
        content = parse_json(read_bytes(path, 2 * MAX_JSON))  # some have thousands of merges and scores
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, not {type(content).__name__}")
    return content


def _check_growth(normalizer: Any) -> None:
    """Refuse normalizers that lengthen texts too much: one step may double them, but not twenty."""
    growth = 1
    left = [normalizer]
    while left:
        step = left.pop()
        if isinstance(step, dict):
            left += step.get("normalizers") or []
            growth *= max(1, len(step.get("content") or step.get("prepend") or ""))
    if growth > MAX_GROWTH:
        raise ValueError(
            f"its normalizer makes texts {growth} times as long; at most {MAX_GROWTH} is allowed"
        )
