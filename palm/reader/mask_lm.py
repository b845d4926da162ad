"""The `mlm` reader: plain texts with randomly masked words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from palm.core.errors import DataError
from palm.core.saved import Tensors, TensorSpec
from palm.reader.base import READERS, Draw
from palm.reader.predictions import Record
from palm.reader.rows import Rows
from palm.reader.table import TextExample, TextReader

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SELECTED = 0.15
MASKED = 0.8
RANDOM = 0.1


def masked_rows(
    token_ids: Ids,
    maskable: Bools,
    mask_id: int,
    vocab_size: int,
    draw: Callable[[int], np.random.Generator],
) -> tuple[Ids, Ids]:
    """Select 15 % of the words; 80 % of them become `[MASK]`, 10 % a random token, and 10 % stay unchanged.

    Args:
        token_ids: the rows, int64[batch, seq].
        maskable: True for words, bool[batch, seq].
        mask_id: the id of `[MASK]`.
        vocab_size: random tokens have ids from 1 to `vocab_size - 1`.
        draw: returns the random generator of a row, in its initial state.

    Returns:
        The rows after masking, int64[batch, seq], and the positions to predict, as row · seq + column,
        ascending, int64[masks]. If no word of a row is selected at random, one is masked anyway.

    Source: Devlin et al., 2018, arXiv:1810.04805, section 3.1, task 1.
    """
    # A generator per row and epoch makes the masks the same in every process and after resuming.
    # Masking all rows at once took 2 ms instead of 4 for 96 rows, which is negligible compared to a step.
    seen = token_ids.copy()
    places = [np.empty(0, dtype=np.int64)]
    for row, is_word in enumerate(maskable):
        columns = np.flatnonzero(is_word)
        if not len(columns):
            continue
        rng = draw(row)
        selected = columns[rng.random(len(columns)) < SELECTED]
        fate = rng.random(len(selected))
        if not len(selected):  # the row would have no loss
            selected = rng.choice(columns, size=1)
            fate = np.zeros(1)
        is_random = (fate >= MASKED) & (fate < MASKED + RANDOM)
        seen[row, selected[fate < MASKED]] = mask_id
        seen[row, selected[is_random]] = rng.integers(1, vocab_size, size=np.count_nonzero(is_random))
        places.append(row * maskable.shape[1] + selected)
    return seen, np.concatenate(places)


_ONE_PER_MASK = TensorSpec(("masks",), torch.long)


@READERS.register("mlm")
class MaskLMReader(TextReader):
    """Reader of tables with the column `text_a`, and optionally `text_b`.

    Rows are those of `ClassifyReader`. Whenever a row is put into a batch, in prediction too, some of its
    words are masked at random: `mask_pos` (row index times padded length plus column) are their positions,
    `mask_label` the original tokens. A record is `{"index": 0, "words": [{"position": 3, "word": "river",
    "predicted": "lake", "prob": 0.5}, ...]}`; positions include `[CLS]`. In evaluation, each word also has
    the `log_prob` of the true word. A row without words is not used in training; its record has no words, and
    evaluation skips it.

    Raises:
        ConfigError: a setting out of its range.
        DataError: the vocabulary cannot be read.

    Source: PaddlePALM 0.2.1, appendix A, `mlm`.
    """

    cacheable = True
    known_columns = ("text_a", "text_b")
    gold_names = ("words",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outputs_attr = {**self.outputs_attr, "mask_pos": _ONE_PER_MASK}
        self.targets_attr = {"mask_label": _ONE_PER_MASK}

    def encode(self, examples: Sequence[TextExample], with_targets: bool) -> Rows:
        rows = super().encode(examples, with_targets)
        special = [2 + (0 if each.text_b is None else self.tokenizer.separators) for each in examples]
        has_words = rows.lengths > np.array(special)
        # Other files than training files may have rows without words, in which nothing is masked.
        if has_words.all() or self.bad_rows is None:
            return rows
        wordless = (examples[k] for k in np.flatnonzero(~has_words).tolist())
        self.refuse(
            [DataError(f"{each.place}: no word to mask in {each.text_a[:40]!r}") for each in wordless]
        )
        return rows.select(np.flatnonzero(has_words).tolist())

    def collate(self, rows: Rows, indices: Sequence[int], draw: Draw) -> Tensors:
        batch = super().collate(rows, indices, draw)
        original = batch["token_ids"].numpy()  # [batch, seq]
        tokenizer = self.tokenizer
        # Texts never have these ids, because special tokens in them are split as any text.
        special = [tokenizer.cls_id, tokenizer.sep_id, *tokenizer.between]
        words = batch["input_mask"].numpy() & ~np.isin(original, special)
        seen, places = masked_rows(original, words, tokenizer.mask_id, tokenizer.vocab_size, draw)
        batch["token_ids"] = torch.from_numpy(seen)
        batch["mask_pos"] = torch.from_numpy(places)
        batch["mask_label"] = torch.from_numpy(original.ravel()[places])
        return batch

    def record(self, example: Any, rows: Rows, places: range, decoded: Sequence[Record]) -> Record:  # noqa: ARG002
        value = decoded[0]
        positions = value["positions"]
        words = self.tokenizer.tokens(rows["token_ids"][places[0]][positions])
        predicted = self.tokenizer.tokens(value["predicted"])
        fields = {"position": positions, "word": words, "predicted": predicted, "prob": value["probs"]}
        if "log_probs" in value:
            fields["log_prob"] = value["log_probs"]
        each = zip(*fields.values(), strict=True)
        return {"words": [dict(zip(fields, word, strict=True)) for word in each]}

    def gold(self, example: TextExample) -> Record:  # noqa: ARG002
        """An empty record, as predictions contain the masked words; those without words have no score."""
        return {}
