"""Vocabulary files as tokenizers of the library `tokenizers`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from palm.core.errors import DataError
from palm.core.io import MAX_JSON, parse_json, read_bytes, wrap_read_errors


class SpecialTokens(NamedTuple):
    """The special tokens of a vocabulary, by their purpose.

    Args:
        pad: pads rows.
        unk: replaces a word that cannot be tokenized.
        cls: starts every row.
        sep: ends every text.
        mask: replaces a masked word.
    """

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")

MERGES = "merges.txt"
SETTINGS = "tokenizer_config.json"
ADDED = "added_tokens.json"

MAX_VOCABULARY = 1 << 26
MAX_TOKENS = 1 << 20
"""64 MiB and a million tokens: more than any vocabulary file has, and small enough to load."""

MAX_ID = 1 << 24
"""More ids than the rows of any embedding table; bounds lists of all ids up to the largest."""

MAX_CHARS_PER_WORD = 100
"""A longer word becomes `[UNK]`, as in BERT."""

MAX_GROWTH = 1000
"""The largest factor by which a normalizer may lengthen a text; published ones need 2."""

_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
_UNASSIGNED = r"\p{Cn}+"


class Library(NamedTuple):
    """A tokenizer of the library with the files that describe it.

    Args:
        tokenizer: as its files describe it, without padding and truncation.
        settings: the content of `tokenizer_config.json`, empty without one.
        padding: the padding token of the file, if it names one.
        companions: the files beside the vocabulary that the tokenizer was made from.
    """

    tokenizer: tokenizers.Tokenizer
    settings: Mapping[str, Any]
    padding: str | None = None
    companions: tuple[Path, ...] = ()


def read_vocabulary(path: Path, do_lower_case: bool) -> Library:
    """The tokenizer of a vocabulary file; see `palm.reader.text.tokenizer.load_tokenizer`.

    Raises:
        DataError: a file cannot be read, or describes a tokenizer that palm does not have.
    """
    beside = path.with_name(SETTINGS)
    settings = read_mapping(beside) if beside.is_file() else {}
    if is_json(path):
        content = read_mapping(path)
        return _described(path, content, settings) if "model" in content else _byte_level(path, settings)
    return _wordpiece(path, settings, do_lower_case)


def most_bytes(file: Path) -> int:
    """The most bytes read of a tokenizer's file; some JSON has thousands of merges and scores."""
    return 2 * MAX_JSON if file.suffix == ".json" else MAX_VOCABULARY


def is_json(path: Path) -> bool:
    """Check whether a vocabulary is JSON, as palm also saves one whose companions it needs."""
    with wrap_read_errors(path, " the vocabulary", DataError):
        return path.suffix == ".json" or read_bytes(path, MAX_VOCABULARY).startswith(b'{\n  "version":')


def read_mapping(path: Path) -> dict[str, Any]:
    """The JSON object in a tokenizer's file."""
    with wrap_read_errors(path, " the vocabulary", DataError):
        content = parse_json(read_bytes(path, most_bytes(path)))
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, not {type(content).__name__}")
    return content


def _wordpiece(path: Path, settings: Mapping[str, Any], do_lower_case: bool) -> Library:
    """BERT's and ERNIE's tokenizer.

    Control characters are removed, every Chinese character is a token, and text is split at white space and
    punctuation and then into the longest known subwords.

    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.
    """
    beside = path.with_name(SETTINGS)
    if settings.get("word_tokenizer_type", "basic") != "basic":
        raise DataError(
            f"{beside}: palm has no {settings['word_tokenizer_type']!r} tokenizer; use a tokenizer.json"
        )
    options = {name: settings.get(name) for name in ("strip_accents", "tokenize_chinese_chars")}
    companions = [] if set(options.values()) <= {None, True} and not options["strip_accents"] else [beside]
    vocabulary = load_vocabulary(path)
    added: dict[str, int] = {}
    if path.with_name(ADDED).is_file():
        companions.append(path.with_name(ADDED))
        added = read_mapping(companions[-1])
    with wrap_read_errors(path, " the vocabulary", DataError):
        made = tokenizers.Tokenizer(
            models.WordPiece(
                vocabulary | added, unk_token="[UNK]", max_input_chars_per_word=MAX_CHARS_PER_WORD
            )
        )
    strips = do_lower_case if options["strip_accents"] is None else bool(options["strip_accents"])
    steps: list[normalizers.Normalizer] = [normalizers.Replace(tokenizers.Regex(_UNASSIGNED), "")]
    if do_lower_case:
        steps.append(normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς"))
    steps.append(
        normalizers.BertNormalizer(
            handle_chinese_chars=options["tokenize_chinese_chars"] is not False,
            lowercase=do_lower_case,
            strip_accents=strips,
        )
    )
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    return Library(made, settings, companions=tuple(companions))


def _byte_level(path: Path, settings: Mapping[str, Any]) -> Library:
    """RoBERTa's tokenizer, byte-level byte-pair encoding; its texts may begin with a space.

    Source: Radford et al., 2019, section 2.2; Liu et al., 2019, arXiv:1907.11692, section 4.4.
    """
    merges = path.with_name(MERGES)
    if not merges.is_file():
        raise DataError(f"{path}: the vocabulary needs {MERGES} in the same folder")
    prefix = bool(settings.get("add_prefix_space"))
    with wrap_read_errors(path, f" the vocabulary with its {MERGES}", DataError):
        read_bytes(merges)
        made = tokenizers.Tokenizer(models.BPE.from_file(str(path), str(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.post_processor = processors.ByteLevel(add_prefix_space=prefix, trim_offsets=True)
    return Library(made, settings, companions=(merges, path.with_name(SETTINGS)) if settings else (merges,))


def _described(path: Path, content: dict[str, Any], settings: Mapping[str, Any]) -> Library:
    """The tokenizer of a `tokenizer.json`."""
    with wrap_read_errors(path, " the tokenizer", DataError):
        _check_growth(content.get("normalizer"))
        made = tokenizers.Tokenizer.from_str(json.dumps(content))
        padding = None if made.padding is None else str(made.padding["pad_token"])
        # A file may pad every text to any length, also the one with which special tokens are looked for.
        made.no_padding()
        made.no_truncation()
    return Library(made, settings, padding, (path.with_name(SETTINGS),) if settings else ())


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


def load_vocabulary(path: Path) -> dict[str, int]:
    """Token -> id of a vocabulary file.

    A line is `token` (whose id is the number of lines before it) or `token<TAB>id`. White space around a
    token is ignored; the id of a line without a token is not used.

    Raises:
        DataError: no such file, a line of another form, a repeated token or id, or a missing special token.
    """
    vocabulary: dict[str, int] = {}
    lines_of_ids: dict[int, int] = {}
    for line_number, (token, number, place) in enumerate(_entries(path), start=1):
        if number in lines_of_ids:
            raise DataError(f"{place}: id {number} is already used in line {lines_of_ids[number]}")
        if token in vocabulary:
            first = lines_of_ids[vocabulary[token]]
            raise DataError(f"{place}: the token {token!r} is already in line {first}; remove one of them")
        lines_of_ids[number] = line_number
        if token:
            vocabulary[token] = number
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise DataError(
            f"{path}: the vocabulary lacks {', '.join(missing)}; it should be that of a BERT or ERNIE model"
        )
    return vocabulary


def _entries(path: Path) -> Iterator[tuple[str, int, str]]:
    """The token, the id and the place (`file:line`) of every line."""
    with wrap_read_errors(path, " the vocabulary", DataError):
        lines = read_bytes(path, MAX_VOCABULARY).decode("utf-8-sig").removesuffix("\n").split("\n")
    if len(lines) > MAX_TOKENS:
        raise DataError(f"{path}: {len(lines)} lines; a vocabulary has at most {MAX_TOKENS}")
    for number, line in enumerate(lines):
        place = f"{path}:{number + 1}"
        columns = [column.strip() for column in line.strip("\r").split("\t")]
        if len(columns) == 1:
            yield columns[0], number, place
        elif len(columns) != 2 or not re.fullmatch("[0-9]{1,9}", columns[1]):
            raise DataError(f"{place}: expected 'token' or 'token<TAB>id', not {line.rstrip()!r}")
        elif int(columns[1]) >= MAX_ID:
            raise DataError(f"{place}: the id {columns[1]} should be below {MAX_ID}")
        else:
            yield columns[0], int(columns[1]), place
