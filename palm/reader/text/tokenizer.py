"""The tokenizer interface, and WordPiece as used by BERT and ERNIE."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from palm.core.errors import DataError
from palm.core.files.untrusted import read_bytes, wrap_read_errors


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
MAX_VOCABULARY = 1 << 26
MAX_TOKENS = 1 << 20
"""64 MiB and a million tokens: more than any vocabulary file has, and small enough to load."""

MAX_ID = 1 << 24
"""More ids than the rows of any embedding table; bounds lists of all ids up to the largest."""

MAX_CHARS_PER_WORD = 100
"""A longer word becomes `[UNK]`, as in BERT."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
_UNASSIGNED = r"\p{Cn}+"


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text.

    Args:
        ids: token ids, int32[tokens].
        starts: the start of every token in the text, in characters, int32[tokens].
        ends: the end of every token, exclusive, int32[tokens].
    """

    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Base of tokenizers for one vocabulary. Special tokens inside a text are treated as text.

    Args:
        pipeline: the tokenizer of the library `tokenizers`.
        ids: token -> id, special tokens included.
        special: the special tokens.
        between: the ids between the two texts of a row; None for one `sep`.
        before_word: a prefix for words that are tokenized separately.

    Attributes:
        vocab_size: the largest id + 1.
        between: the ids between the two texts of a row.
        separators: the number of these ids.
        companions: files in the vocabulary's folder that belong to it.
        lacks_capitals: texts are not lower-cased, but the vocabulary only has lower-case words.
    """

    companions: tuple[Path, ...] = ()
    lacks_capitals: bool = False

    def __init__(
        self,
        pipeline: tokenizers.Tokenizer,
        ids: dict[str, int],
        special: SpecialTokens = SPECIAL_TOKENS,
        between: Sequence[int] | None = None,
        before_word: str = "",
    ) -> None:
        self.pad_id = ids[special.pad]
        self.unk_id = ids[special.unk]
        self.cls_id = ids[special.cls]
        self.sep_id = ids[special.sep]
        self._mask = special.mask
        self.vocab_size = max(ids.values()) + 1
        self.between = [self.sep_id] if between is None else list(between)
        self.separators = len(self.between)
        self._unknown = special.unk
        self._before_word = before_word
        self._ids = ids
        self._tokens = {number: token for token, number in ids.items()}
        self._pipeline = pipeline

    @property
    def mask_id(self) -> int:
        """The id of the mask token.

        Raises:
            DataError: the vocabulary has none.
        """
        if self._mask not in self._ids:
            raise DataError("the vocabulary has no mask token, which mlm needs; use another encoder")
        return self._ids[self._mask]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts in parallel, without special tokens."""
        with _encoding():
            encodings = self._pipeline.encode_batch_fast(_encodable(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Tokenize words in parallel, each as it would be inside a text."""
        return self.encode([self._before_word + word for word in words])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize texts in parallel, with the character offsets of every token."""
        with _encoding():
            encodings = self._pipeline.encode_batch(_encodable(texts), add_special_tokens=False)
        offsets = [np.asarray(encoding.offsets, dtype=np.int32).reshape(-1, 2) for encoding in encodings]
        return [
            Tokens(np.asarray(encoding.ids, dtype=np.int32), ends[:, 0], ends[:, 1])
            for encoding, ends in zip(encodings, offsets, strict=True)
        ]

    def row(self, a: Iterable[int], b: Iterable[int] | None = None) -> list[int]:
        """The row `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]` for two texts.

        RoBERTa has `<s> a </s>` and `<s> a </s></s> b </s>`; other tokenizers follow their `tokenizer.json`.
        """
        second = [] if b is None else [*self.between, *b]
        return [self.cls_id, *a, *second, self.sep_id]

    def sequence(self, a: Sequence[int], b: Sequence[int] | None, most: int) -> tuple[list[int], int]:
        """The row cut to `most` tokens, and the number of tokens in segment 0, separators included.

        A single text is cut at its end. Of two texts, the longer one (the second on ties) loses its last
        token until both fit.
        """
        if b is None:
            ids = self.row(a[: most - 2])
            return ids, len(ids)
        keep_a, keep_b = fitting_lengths(len(a), len(b), most - 2 - self.separators)
        return self.row(a[:keep_a], b[:keep_b]), keep_a + 1 + self.separators

    def to_library(self) -> tokenizers.Tokenizer:
        """A copy as a tokenizer of the library `tokenizers`."""
        return tokenizers.Tokenizer.from_str(self._pipeline.to_str())

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens with these ids; the unknown token for an id that the vocabulary does not use."""
        return [self._tokens.get(int(number), self._unknown) for number in ids]

    def id_of(self, token: str) -> int:
        """The id of a token of the vocabulary."""
        return self._ids[token]


def fitting_lengths(a: int, b: int, budget: int) -> tuple[int, int]:
    """Shorten two lengths to a budget; the longer one (b on ties) loses tokens first."""
    excess = max(0, a + b - budget)
    from_longer = min(excess, abs(a - b))
    a, b = (a - from_longer, b) if a > b else (a, b - from_longer)
    rest = excess - from_longer
    return a - rest // 2, b - (rest + 1) // 2


class WordPieceTokenizer(Tokenizer):
    """The tokenizer of BERT and ERNIE.

    Control characters are removed, every Chinese character is a token, and text is split at white space and
    punctuation and then into the longest known subwords. Special tokens inside a text are treated as text:
    `[SEP]` becomes `[`, `sep`, `]`.

    Args:
        vocab_path: the vocabulary, one token per line, or `token<TAB>id`.
        do_lower_case: lower-case the text and strip its accents.

    Raises:
        DataError: the vocabulary cannot be read; names `file:line`.

    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.
    """

    def __init__(self, vocab_path: str | Path, do_lower_case: bool = False) -> None:
        vocabulary = load_vocabulary(Path(vocab_path))
        pipeline = tokenizers.Tokenizer(
            models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=MAX_CHARS_PER_WORD)
        )
        steps: list[normalizers.Normalizer] = [normalizers.Replace(tokenizers.Regex(_UNASSIGNED), "")]
        if do_lower_case:
            steps.append(normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς"))
        steps.append(normalizers.BertNormalizer(lowercase=do_lower_case, strip_accents=do_lower_case))
        pipeline.normalizer = normalizers.Sequence(steps)
        pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        super().__init__(pipeline, vocabulary)
        words = [word for word in vocabulary if not word.startswith("[")]
        self.lacks_capitals = (
            not do_lower_case
            and all(word == word.lower() for word in words)
            and any(word != word.upper() for word in words)
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


def _encoding() -> AbstractContextManager[None]:
    """Convert the library's errors about an inconsistent vocabulary to DataErrors."""
    return wrap_read_errors("a text", " with this vocabulary", DataError)


def _encodable(texts: Sequence[str]) -> list[str]:
    return [text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text) for text in texts]


# A fork does not copy the library's threads, and a forked worker must not wait for them. Setting the variable
# also silences the library's warning. A user's own setting is kept.
if "TOKENIZERS_PARALLELISM" not in os.environ and hasattr(os, "register_at_fork"):
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))
