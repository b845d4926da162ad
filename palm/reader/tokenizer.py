"""Tokenizers of directories and vocabularies."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from palm.core.errors import ConfigError, DataError, about
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
SPECIAL = "special_tokens_map.json"
SENTENCE = "sentence_bert_config.json"
COMPANIONS = (MERGES, SETTINGS, ADDED, SPECIAL, SENTENCE)
"""Files beside a vocabulary that define its tokenizer too."""

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

CLASSES = {
    "vocab.txt": "Bert ConvBert DPRContextEncoder DPRQuestionEncoder DistilBert Electra Ernie ErnieGram"
    " Funnel LayoutLM Lxmert MobileBert PPMiniLM Roberta RobertaChinese SqueezeBert TinyBert",
    "vocab.json": "Bart Blenderbot Deberta GPT2 LED Longformer Mvp Roberta",
}
"""Vocabulary -> the tokenizer classes of transformers and PaddleNLP that palm computes from it."""

_ANY_CLASS = ("", "PreTrained", "PreTrainedFast", "TokenizersBackend")

COMPUTED_AS: dict[str, Any] = {
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "do_basic_tokenize": True,
    "never_split": [],
}
"""Setting of `tokenizer_config.json` that changes tokens -> the only value that palm computes."""


class Files:
    """A vocabulary and the settings in the files beside it.

    Args:
        path: the vocabulary.

    Attributes:
        is_json: the vocabulary is JSON, as palm also saves one whose companions it needs.
        content: that JSON; empty for a list of tokens.
        is_whole: the vocabulary is a `tokenizer.json`, so companions that repeat it do not count.
        settings: the content of `tokenizer_config.json`, over that of `special_tokens_map.json`.
        companions: the files beside the vocabulary that count.

    Raises:
        DataError: a file cannot be read, or describes a tokenizer that palm does not compute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_read_errors(path, " the vocabulary", DataError):
            begin = read_bytes(path, most_bytes(path))[:16]
        self.is_json = path.suffix == ".json" or begin.startswith(b'{\n  "version":')
        self.content = self.read(path) if self.is_json else {}
        self.is_whole = "model" in self.content
        names = (SETTINGS, SENTENCE) if self.is_whole else COMPANIONS
        self.companions = tuple(file for name in names if (file := path.with_name(name)).is_file())
        self.settings = {**self.beside(SPECIAL), **self.beside(SETTINGS)}
        if not self.is_whole:
            self._check_class()

    def read(self, file: Path) -> dict[str, Any]:
        """The JSON object in one of the files."""
        with wrap_read_errors(file, " the vocabulary", DataError):
            content = parse_json(read_bytes(file, most_bytes(file)))
        if not isinstance(content, dict):
            raise DataError(f"{file}: expected a JSON object, not {type(content).__name__}")
        return content

    def beside(self, name: str) -> dict[str, Any]:
        """The JSON object of a companion; empty if it does not count."""
        file = self.path.with_name(name)
        return self.read(file) if file in self.companions else {}

    def added_tokens(self, vocabulary: Mapping[str, int]) -> dict[str, tuple[int, tokenizers.AddedToken]]:
        """The tokens that are not split, by their text, besides the special tokens of rows."""
        added: dict[str, tuple[int, tokenizers.AddedToken]] = {}
        with wrap_read_errors(self.path, " the added tokens beside it", DataError):
            for number, token in (self.settings.get("added_tokens_decoder") or {}).items():
                added[str(token["content"])] = int(number), _added_token(token)
            for token, number in self.beside(ADDED).items():
                added.setdefault(token, (int(number), _added_token({"content": token, "normalized": True})))
            for name in ("additional_special_tokens", "extra_special_tokens"):
                listed = self.settings.get(name) or []
                for token in listed.values() if isinstance(listed, dict) else listed:
                    last = max((*vocabulary.values(), *(number for number, _ in added.values())))
                    number = vocabulary.get(str(_content(token)), last + 1)
                    added.setdefault(str(_content(token)), (number, _added_token(token)))
        rows = {*SPECIAL_TOKENS, *ROBERTA_TOKENS}
        return {token: one for token, one in added.items() if token and token not in rows}

    def special_token(self, role: str) -> str | None:
        """The special token that the settings name for a role such as `pad`."""
        token = _content(self.settings.get(f"{role}_token"))
        return token if isinstance(token, str) else None

    def _check_class(self) -> None:
        kind = str(self.settings.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer")
        known = CLASSES["vocab.json" if self.is_json else "vocab.txt"].split()
        given = {name: self.settings.get(name) for name in COMPUTED_AS}
        wrong = [f"{name}: {v!r}" for name, v in given.items() if v not in (None, COMPUTED_AS[name])]
        if kind not in (*known, *_ANY_CLASS):
            wrong.append(f"tokenizer_class: {self.settings['tokenizer_class']!r}")
        if wrong:
            raise DataError(
                f"{self.path.with_name(SETTINGS)}: palm does not compute {' and '.join(wrong)} from "
                f"{self.path.name}; use a tokenizer.json, which AutoTokenizer.save_pretrained writes"
            )


def _content(token: Any) -> Any:
    """The text of a token in a file of settings, which may have options."""
    return token.get("content") if isinstance(token, dict) else token


def _added_token(token: Any) -> tokenizers.AddedToken:
    """The library's token for one in a file of settings."""
    given = token if isinstance(token, dict) else {}
    names = ("single_word", "lstrip", "rstrip", "normalized")
    return tokenizers.AddedToken(str(_content(token)), **{name: given.get(name) is True for name in names})


def most_bytes(file: Path) -> int:
    """The most bytes read of a tokenizer's file; some JSON has thousands of merges and scores."""
    return 2 * MAX_JSON if file.suffix == ".json" else MAX_VOCABULARY


def library_tokenizer(files: Files, do_lower_case: bool) -> tokenizers.Tokenizer:
    """The library's tokenizer that a vocabulary's files describe, without padding and truncation.

    Raises:
        DataError: a file cannot be read, or describes a tokenizer that palm does not have.
    """
    if files.is_whole:
        made = _described(files)
    else:
        made = _byte_level(files) if files.is_json else _wordpiece(files, do_lower_case)
    if files.beside(SENTENCE).get("do_lower_case") is True:
        steps = [normalizers.Lowercase(), *([] if made.normalizer is None else [made.normalizer])]
        made.normalizer = normalizers.Sequence(steps)
    return made


def _wordpiece(files: Files, do_lower_case: bool) -> tokenizers.Tokenizer:
    """BERT's and ERNIE's tokenizer.

    Control characters are removed, every Chinese character is a token, and text is split at white space and
    punctuation and then into the longest known subwords.

    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.
    """
    vocabulary = load_vocabulary(files.path)
    added = files.added_tokens(vocabulary)
    ids = {token: number for token, (number, _) in added.items()}
    with wrap_read_errors(files.path, " the vocabulary", DataError):
        model = models.WordPiece(
            vocabulary | ids,
            unk_token="[UNK]",
            max_input_chars_per_word=MAX_CHARS_PER_WORD,
        )
        made = tokenizers.Tokenizer(model)
    strips = files.settings.get("strip_accents")
    steps: list[normalizers.Normalizer] = [normalizers.Replace(tokenizers.Regex(_UNASSIGNED), "")]
    if do_lower_case:
        steps.append(normalizers.Replace(tokenizers.Regex(_FINAL_SIGMA), "ς"))
    steps.append(
        normalizers.BertNormalizer(
            handle_chinese_chars=files.settings.get("tokenize_chinese_chars") is not False,
            lowercase=do_lower_case,
            strip_accents=do_lower_case if strips is None else bool(strips),
        )
    )
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_tokens([token for _, token in added.values()])
    return made


def _byte_level(files: Files) -> tokenizers.Tokenizer:
    """RoBERTa's tokenizer, byte-level byte-pair encoding; its texts may begin with a space.

    Source: Radford et al., 2019, section 2.2; Liu et al., 2019, arXiv:1907.11692, section 4.4.
    """
    merges = files.path.with_name(MERGES)
    if not merges.is_file():
        raise DataError(f"{files.path}: the vocabulary needs {MERGES} in the same folder")
    prefix = bool(files.settings.get("add_prefix_space"))
    with wrap_read_errors(files.path, f" the vocabulary with its {MERGES}", DataError):
        read_bytes(merges)
        vocabulary, pairs = models.BPE.read_file(str(files.path), str(merges))
        added = files.added_tokens(vocabulary)
        ids = {token: number for token, (number, _) in added.items()}
        made = tokenizers.Tokenizer(models.BPE(vocabulary | ids, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.post_processor = processors.ByteLevel(add_prefix_space=prefix, trim_offsets=True)
    made.add_tokens([token for _, token in added.values()])
    return made


def _described(files: Files) -> tokenizers.Tokenizer:
    """The tokenizer of a `tokenizer.json`."""
    with wrap_read_errors(files.path, " the tokenizer", DataError):
        _check_growth(files.content.get("normalizer"))
        made = tokenizers.Tokenizer.from_str(json.dumps(files.content))
        if made.padding is not None:
            files.settings.setdefault("pad_token", str(made.padding["pad_token"]))
        # A file may pad every text to any length, also the one with which special tokens are looked for.
        made.no_padding()
        made.no_truncation()
    return made


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
        DataError: no such file, a line of another form, or a repeated token or id.
    """
    with wrap_read_errors(path, " the vocabulary", DataError):
        lines = read_bytes(path, MAX_VOCABULARY).decode("utf-8-sig").removesuffix("\n").split("\n")
    if len(lines) > MAX_TOKENS:
        raise DataError(f"{path}: {len(lines)} lines; a vocabulary has at most {MAX_TOKENS}")
    vocabulary: dict[str, int] = {}
    used: dict[int, int] = {}
    for line_number, line in enumerate(lines, start=1):
        place = f"{path}:{line_number}"
        token, *ids = (column.strip() for column in line.strip("\r").split("\t"))
        if len(ids) > 1 or not all(re.fullmatch("[0-9]{1,9}", number) for number in ids):
            raise DataError(f"{place}: expected 'token' or 'token<TAB>id', not {line.rstrip()!r}")
        number = int(ids[0]) if ids else line_number - 1
        if number >= MAX_ID:
            raise DataError(f"{place}: the id {number} should be below {MAX_ID}")
        if number in used:
            raise DataError(f"{place}: id {number} is already used in line {used[number]}")
        if token in vocabulary:
            first = used[vocabulary[token]]
            raise DataError(f"{place}: the token {token!r} is already in line {first}; remove one of them")
        used[number] = line_number
        if token:
            vocabulary[token] = number
    return vocabulary


LONG = 1 << 16
"""Characters up to which a text is tokenized as a whole."""

_UNKNOWN = "a A \u1234 \U0001f9ff"
"""A text with characters that few vocabularies have."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
    """The tokenizer of one vocabulary.

    Added tokens of the vocabulary are found in texts, but the special tokens of rows (such as `[SEP]`) are
    treated as text.

    Args:
        files: the vocabulary and the files beside it.
        do_lower_case: lower-case texts and strip accents; only for WordPiece.

    Attributes:
        ids: token -> id, special tokens included.
        vocab_size: the largest id + 1.
        between: the ids between the two texts of a row.
        separators: the number of these ids.
        companions: files in the vocabulary's folder that belong to it.
        is_lower_case: texts are lower-cased.
        lacks_capitals: texts are not lower-cased, but the vocabulary only has lower-case words.

    Raises:
        DataError: an id is too large, a text cannot be tokenized, or there are no tokens that start and end
            texts or pad rows.
    """

    def __init__(self, files: Files, do_lower_case: bool) -> None:
        self._library = library_tokenizer(files, do_lower_case)
        self.ids = self._library.get_vocab()
        self.companions = files.companions
        if self.ids and max(self.ids.values()) >= MAX_ID:
            raise DataError(f"{files.path}: the id {max(self.ids.values())} should be below {MAX_ID}")
        with wrap_read_errors(files.path, " the tokenizer", DataError):
            self._special = special = _special_of(self._library, files, self.ids)
            self._pipeline = _with_special_as_text(self._library, special)
            # Fails if the model's token for unknown words is not in its vocabulary.
            self._pipeline.encode(_UNKNOWN, add_special_tokens=False)
            pair = self._library.encode("a", "a")
            inside = self._pipeline.encode("a a", add_special_tokens=False)
            single = self._pipeline.encode("a", add_special_tokens=False)
            normalizer = self._library.normalizer
            self.is_lower_case = normalizer is not None and normalizer.normalize_str("A") == "a"
        self.pad_id = self.ids[special.pad]
        self.unk_id = self.ids[special.unk]
        self.cls_id = self.ids[special.cls]
        self.sep_id = self.ids[special.sep]
        self.vocab_size = max(self.ids.values()) + 1
        inner = zip(pair.ids[1:-1], pair.special_tokens_mask[1:-1], strict=True)
        self.between = [number for number, mark in inner if mark]
        self.separators = len(self.between)
        self._tokens = {number: token for token, number in self.ids.items()}
        # A word by itself needs a space before it to be tokenized as inside a text if tokens contain spaces.
        self._before_word = "" if inside.ids == single.ids * 2 else " "
        self._offsets_have_spaces = any("a a"[start] == " " for start, _ in inside.offsets)
        self.lacks_capitals = not self.is_lower_case and self.is_wordpiece and _is_lower(self.ids)

    @property
    def is_wordpiece(self) -> bool:
        """True for the vocabulary of a BERT or ERNIE model, which a list of tokens describes."""
        return isinstance(self._library.model, models.WordPiece)

    @property
    def mask_id(self) -> int:
        """The id of the mask token.

        Raises:
            DataError: the vocabulary has none.
        """
        if self._special.mask not in self.ids:
            raise DataError("the vocabulary has no mask token, which mlm needs; use another encoder")
        return self.ids[self._special.mask]

    def encode(self, texts: Sequence[str], needed: int | None = None) -> list[list[int]]:
        """Tokenize texts in parallel, without special tokens.

        Args:
            texts: the texts.
            needed: if a text has more tokens, the others may be missing, at least one excepted; None for all.
        """
        if needed is not None:
            texts = [self._beginning(text, needed) for text in texts]
        with _encoding():
            encodings = self._pipeline.encode_batch_fast(_encodable(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _beginning(self, text: str, needed: int) -> str:
        """The beginning of a long text with more than `needed` tokens; a token takes 150 bytes of memory."""
        end = LONG
        while end < len(text):
            begin = text[: text.rfind(" ", 0, end) if " " in text[:end] else end]
            if len(self._pipeline.encode(_encodable([begin])[0], add_special_tokens=False)) > needed:
                return begin
            end *= 4
        return text

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Tokenize words in parallel, each as it would be inside a text."""
        return self.encode([self._before_word + word for word in words])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize texts in parallel, with the character offsets of every token."""
        with _encoding():
            encodings = self._pipeline.encode_batch(_encodable(texts), add_special_tokens=False)
        found = []
        for encoding, text in zip(encodings, texts, strict=True):
            offsets = np.asarray(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            tokens = Tokens(np.asarray(encoding.ids, dtype=np.int32), offsets[:, 0], offsets[:, 1])
            found.append(_without_spaces(tokens, text) if self._offsets_have_spaces else tokens)
        return found

    def row(self, a: Iterable[int], b: Iterable[int] | None = None) -> list[int]:
        """The row `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]` for two texts.

        RoBERTa has `<s> a </s>` and `<s> a </s></s> b </s>`; other tokenizers follow their `tokenizer.json`.
        """
        second = [] if b is None else [*self.between, *b]
        return [self.cls_id, *a, *second, self.sep_id]

    def sequence(self, a: Sequence[int], b: Sequence[int] | None, most: int) -> tuple[list[int], int, bool]:
        """The row cut to `most` tokens, the number of tokens in segment 0, separators included, and whether
        any token was cut.

        A single text is cut at its end. Of two texts, the longer one (the second on ties) loses its last
        token until both fit.
        """
        if b is None:
            ids = self.row(a[: most - 2])
            return ids, len(ids), len(a) > most - 2
        keep_a, keep_b = fitting_lengths(len(a), len(b), most - 2 - self.separators)
        is_cut = keep_a + keep_b < len(a) + len(b)
        return self.row(a[:keep_a], b[:keep_b]), keep_a + 1 + self.separators, is_cut

    def to_library(self) -> tokenizers.Tokenizer:
        """A copy as a tokenizer of the library `tokenizers`, which finds special tokens in texts."""
        return tokenizers.Tokenizer.from_str(self._library.to_str())

    def to_json(self) -> str:
        """A `tokenizer.json` that needs no file beside it; its padding names the padding token."""
        library = self.to_library()
        library.enable_padding(pad_id=self.pad_id, pad_token=self._special.pad)
        library.add_special_tokens([token for token in self._special if token in self.ids])
        return library.to_str(pretty=True)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens with these ids; the unknown token for an id that the vocabulary does not use."""
        return [self._tokens.get(int(number), self._special.unk) for number in ids]


def fitting_lengths(a: int, b: int, budget: int) -> tuple[int, int]:
    """Shorten two lengths to a budget; the longer one (b on ties) loses tokens first."""
    excess = max(0, a + b - budget)
    from_longer = min(excess, abs(a - b))
    a, b = (a - from_longer, b) if a > b else (a, b - from_longer)
    rest = excess - from_longer
    return a - rest // 2, b - (rest + 1) // 2


_TOKENIZERS: WeakValueDictionary[tuple[object, ...], Tokenizer] = WeakValueDictionary()
"""The tokenizers in use, by the content of their files: tasks and saved models mostly share a vocabulary,
and BERT's takes 11 MiB and 0.1 CPU seconds. Paths would not do, as every saved model has its own copy."""


def load_tokenizer(vocab_path: Path, do_lower_case: bool = False) -> Tokenizer:
    """The tokenizer of a vocabulary file, which is shared by all files with the same content.

    Args:
        vocab_path: WordPiece's vocabulary, one token per line or `token<TAB>id`; or RoBERTa's, a JSON object
            token -> id, with `merges.txt` in the same folder; or a `tokenizer.json` of Hugging Face's
            library, which is used as it is. `tokenizer_config.json` in the same folder may have further
            settings, and `added_tokens.json` tokens that WordPiece does not split.
        do_lower_case: lower-case texts and strip accents; only for WordPiece, others have their own setting.

    Raises:
        DataError: the vocabulary cannot be read, or lacks special tokens.
        ConfigError: `do_lower_case` for a cased vocabulary in JSON.
    """
    files = Files(Path(vocab_path))
    with wrap_read_errors(files.path, " the vocabulary", DataError):
        every = (files.path, *files.companions)
        parts = [hashlib.sha256(read_bytes(file, most_bytes(file))).digest() for file in every]
    # A tokenizer stores the paths of its other files, so these are part of the key.
    key = (do_lower_case, files.path.suffix, *parts, *(str(file.absolute()) for file in files.companions))
    tokenizer = _TOKENIZERS.get(key)
    if tokenizer is None:
        tokenizer = _TOKENIZERS[key] = Tokenizer(files, do_lower_case)
    if do_lower_case and not tokenizer.is_lower_case:
        raise ConfigError(
            about("do_lower_case", f": the vocabulary {str(vocab_path)!r} is cased; remove do_lower_case")
        )
    return tokenizer


def _special_of(library: tokenizers.Tokenizer, files: Files, ids: Mapping[str, int]) -> SpecialTokens:
    """The special tokens; makes the library put them around texts, as BERT or RoBERTa, unless it does."""
    marks = [] if library.post_processor is None else library.encode("a").special_tokens_mask
    lacking = {
        known: [token for token in known if token not in ids] for known in (SPECIAL_TOKENS, ROBERTA_TOKENS)
    }
    known = min(lacking, key=lambda special: len(lacking[special]))
    surrounds = len(marks) > 2 and bool(marks[0] and marks[-1])
    # A byte-level vocabulary has no token for unknown words and needs none.
    unknown = getattr(library.model, "unk_token", None)
    added = library.get_added_tokens_decoder().values()
    masks = [token.content for token in added if token.special and "mask" in token.content.lower()]
    pad = _first((files.special_token("pad"), known.pad, "<pad>"), ids)
    if (lacking[known] and not surrounds) or pad is None:
        raise DataError(
            f"{files.path}: the vocabulary lacks {', '.join(lacking[known])}; it should be that of a BERT or "
            "RoBERTa model, or a tokenizer.json that adds its own special tokens to texts"
        )
    if not lacking[known] and not surrounds:
        _surround(library, known, ids)
    tokens = library.encode("a").tokens
    unk = _first((files.special_token("unk"), unknown, known.unk, "<unk>"), ids) or pad
    mask = _first((files.special_token("mask"), known.mask, *masks), ids) or "<mask>"
    return SpecialTokens(pad, unk, tokens[0], tokens[-1], mask)


def _surround(library: tokenizers.Tokenizer, special: SpecialTokens, ids: Mapping[str, int]) -> None:
    """Make the library put special tokens around one text or two; RoBERTa's has two between them."""
    sep, cls = ((token, ids[token]) for token in (special.sep, special.cls))
    around: processors.PostProcessor = processors.BertProcessing(sep, cls)
    if special is ROBERTA_TOKENS:
        around = processors.RobertaProcessing(sep, cls, trim_offsets=False)
    # The first step of a byte-level one removes spaces from the offsets of words.
    before = [] if library.post_processor is None else [library.post_processor]
    library.post_processor = processors.Sequence([*before, around])


def _first(names: Iterable[str | None], ids: Mapping[str, int]) -> str | None:
    return next((name for name in names if name in ids), None)


def _with_special_as_text(library: tokenizers.Tokenizer, special: SpecialTokens) -> tokenizers.Tokenizer:
    """The tokenizer or a copy that tokenizes the special tokens of rows in a text like any other text."""
    if not library.get_added_tokens_decoder() and not isinstance(library.model, models.Unigram):
        return library
    content = json.loads(library.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in special
    if content["model"]["type"] == "Unigram":  # would recognize special tokens inside a text
        hidden = {token: f"\ufdd0{token}" for token in special}
        pieces = [[hidden.get(piece, piece), score] for piece, score in content["model"]["vocab"]]
        content["model"]["vocab"] = pieces
        for token in content["added_tokens"]:
            token["content"] = hidden.get(token["content"], token["content"])
    copy = tokenizers.Tokenizer.from_str(json.dumps(content))
    copy.encode_special_tokens = True  # as text
    return copy


def _is_lower(ids: Iterable[str]) -> bool:
    words = [word for word in ids if not word.startswith("[")]
    return all(word == word.lower() for word in words) and any(word != word.upper() for word in words)


def _without_spaces(tokens: Tokens, text: str) -> Tokens:
    """The tokens without the spaces at their starts, such as SentencePiece's, which belong to no word."""
    is_space = np.fromiter((*(character.isspace() for character in text), False), dtype=bool)
    starts = tokens.starts.copy()
    while (leading := is_space[starts] & (starts < tokens.ends)).any():
        starts += leading
    return Tokens(tokens.ids, starts, tokens.ends)


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
