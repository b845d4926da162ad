"""The vocabulary in a model's directory, and detection of lower-case vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from palm.core.files.untrusted import read_bytes, read_json, wrap_read_errors
from palm.reader.text.tokenizer import load_tokenizer
from palm.reader.text.vocabulary import MAX_VOCABULARY

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Possible files of a vocabulary; the first one that exists is used. `vocab.json` needs `merges.txt`."""


def find_vocabulary(folder: Path) -> Path | None:
    """Find the vocabulary in a folder; None if there is none."""
    files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
    has_merges = (folder / "merges.txt").is_file()
    return next((file for file in files if file.name != "vocab.json" or has_merges), None)


def vocabulary_differences(ours: Path, theirs: Path | None) -> Iterator[str]:
    """Compare a reader's vocabulary with that of the weights.

    Args:
        ours: the reader's vocabulary.
        theirs: the vocabulary with which the weights were trained; None if unknown.
    """
    if theirs is None:
        return
    known = load_tokenizer(theirs).ids
    other = [token for token, number in load_tokenizer(ours).ids.items() if known.get(token) != number]
    if other:
        yield (
            f"{len(other)} tokens of {ours} have different ids in {theirs}, the vocabulary of the weights "
            f"({', '.join(map(repr, other[:3]))}); set vocab_path: {theirs}"
        )


def is_lower_case(vocabulary: Path) -> bool:
    """Check whether texts should be lower-cased for a vocabulary.

    `tokenizer_config.json` beside it decides; without it, a WordPiece vocabulary without capital letters is
    lower-case. False for vocabularies in JSON files, which include their own normalization.
    """
    if vocabulary.suffix == ".json":
        return False
    beside = vocabulary.with_name("tokenizer_config.json")
    settings = read_json(beside) if beside.is_file() else None
    found = settings.get("do_lower_case") if isinstance(settings, dict) else None
    if found is not None:
        return bool(found)
    with wrap_read_errors(vocabulary):
        lines = read_bytes(vocabulary, MAX_VOCABULARY).decode("utf-8-sig").splitlines()
    words = (line.split("\t")[0] for line in lines)
    return not any(word != word.lower() for word in words if not word.startswith(("[", "<")))
