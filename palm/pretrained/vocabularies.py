"""The vocabulary in a model's directory, and whether it is one of lower-case words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from palm.core.files.untrusted import read_bytes, read_json, wrap_read_errors
from palm.reader.text.tokenizer import MAX_VOCABULARY, load_vocabulary

VOCABULARIES = ("vocab.txt", "vocab.json", "tokenizer.json")
"""Files that a vocabulary may be; the first that is there counts. Beside `vocab.json` lies `merges.txt`."""


def find_vocabulary(folder: Path) -> Path | None:
    """The vocabulary in a folder; None without."""
    files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
    has_merges = (folder / "merges.txt").is_file()
    return next((file for file in files if file.name != "vocab.json" or has_merges), None)


def vocabulary_differences(ours: Path, theirs: Path | None) -> Iterator[str]:
    """Compare a reader's vocabulary with that of the weights, where both are lists of tokens.

    Args:
        ours: whose tokens the encoder gets.
        theirs: whose tokens it was trained with; None where that is not known.
    """
    if theirs is None or theirs.suffix == ".json" or ours.suffix == ".json":
        return
    known = load_vocabulary(theirs)
    other = [token for token, number in load_vocabulary(ours).items() if known.get(token) != number]
    if other:
        yield (
            f"{len(other)} tokens of {ours} have another id in {theirs}, with which the weights were trained "
            f"({', '.join(map(repr, other[:3]))}); set vocab_path: {theirs}"
        )


def is_lower_case(vocabulary: Path) -> bool:
    """Tell whether texts should be lower-cased for a vocabulary.

    `tokenizer_config.json` beside it says so; without it, a WordPiece vocabulary in which no word has a
    capital letter is one of lower-case words. Vocabularies in JSON files know themselves: False.
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
