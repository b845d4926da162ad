"""Rows of a batch as people read them: tokens instead of ids, and the labels' names."""

from __future__ import annotations

from collections.abc import Sequence

from palm.core.tensor_specs import Tensors
from palm.reader import Reader
from palm.reader.text.labels import Labels
from palm.reader.text.tokenizer import Tokenizer


def readable_rows(reader: Reader, batch: Tensors, count: int) -> list[str]:
    """The first rows of a batch with targets, a line each; none where the reader has no tokenizer.

    Args:
        reader: made the batch.
        batch: on the CPU.
        count: how many.
    """
    tokenizer = getattr(reader, "tokenizer", None)
    if not isinstance(tokenizer, Tokenizer) or "token_ids" not in batch:
        return []
    names = next((value.names for value in vars(reader).values() if isinstance(value, Labels)), {})
    lines = []
    for row in range(min(count, len(batch["token_ids"]))):
        tokens = tokenizer.tokens(batch["token_ids"][row][batch["input_mask"][row]].tolist())
        found = _targets(reader, batch, row, tokens, names, tokenizer)
        lines.append(" ".join([*tokens, *(f"| {name}: {value}" for name, value in found.items())]))
    return lines


def _targets(
    reader: Reader,
    batch: Tensors,
    row: int,
    tokens: Sequence[str],
    names: dict[int, str],
    tokenizer: Tokenizer,
) -> dict[str, str]:
    """What is true of one row, by what a person would call it."""
    if {"start_positions", "end_positions"} <= batch.keys():
        first, last = (int(batch[name][row]) for name in ("start_positions", "end_positions"))
        return {"answer": " ".join(tokens[first : last + 1])}
    if {"mask_pos", "mask_label"} <= batch.keys():
        here = batch["mask_pos"] // batch["token_ids"].shape[1] == row
        return {"masked": " ".join(tokenizer.tokens(batch["mask_label"][here].tolist()))}
    found = {}
    for name in reader.targets_attr:
        if name in batch and batch[name].ndim and len(batch[name]) == len(batch["token_ids"]):
            value = batch[name][row]
            # Of labels of tokens, those of the tokens that have one.
            labels = [n for n in value[: len(tokens)].tolist() if n >= 0] if value.ndim else [value.item()]
            shown = " ".join(names.get(int(label), f"{label}") for label in labels)
            found[name.removesuffix("_ids").removesuffix("_values")] = shown
    return found
