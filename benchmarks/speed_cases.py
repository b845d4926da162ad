"""What the speed benchmarks compute: encoder shapes, batches of each kind of task, and their FLOPs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from palm.core.saved import Tensors
from palm.reader import ClassifyReader, MatchReader, Reader, SequenceLabelReader
from palm.reader.cache import training_rows
from palm.train.stream import TaskStream

DATA = Path(__file__).resolve().parents[1] / "data"
VOCABULARY = 30522
MASK_ID, FIRST_WORD = 103, 1000
NUM_TAGS = 9


@dataclass(frozen=True)
class Shape:
    """Measures of an encoder."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int

    @property
    def settings(self) -> dict[str, int]:
        """Arguments of `palm.backbone.BERT`."""
        sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 512}
        return {**vars(self), "intermediate_size": 4 * self.hidden_size, **sizes}

    def flops(self, batch: Tensors) -> float:
        """Forward of every layer for the real tokens of a batch, without embeddings and head."""
        lengths = batch["input_mask"].sum(1).double()
        products = 2 * 12 * self.hidden_size**2 * lengths.sum() + 4 * self.hidden_size * (lengths**2).sum()
        return self.num_hidden_layers * float(products)


SHAPES = {
    "tiny": Shape(64, 2, 2),
    "minilm": Shape(384, 6, 12),
    "base": Shape(768, 12, 12),
    "large": Shape(1024, 24, 16),
}


@dataclass(frozen=True)
class Case:
    """Batches of one kind of task, the same for everybody who is measured.

    Args:
        name: for the report.
        kind: the paradigm: match, mrc, mlm or seq_label; crf is seq_label with one.
        batches: as a reader collates them, with targets.
        n_classes: number of labels.
    """

    name: str
    kind: str
    batches: list[Tensors]
    n_classes: int = 2

    @cached_property
    def rows(self) -> int:
        """Rows of a batch."""
        return len(self.batches[0]["input_mask"])

    @cached_property
    def fill(self) -> float:
        """Share of real tokens in the padded batches."""
        return float(np.mean([batch["input_mask"].double().mean() for batch in self.batches]))


def read_pairs(file: Path, vocab: Path, max_seq_len: int, rows: int, count: int) -> Case:
    """Pairs of texts from a data file of `match`, in its order."""
    reader = MatchReader(vocab, max_seq_len, do_lower_case=True)
    return Case(f"pairs {max_seq_len}", "match", _collated(reader, file, rows, count))


def read_short(file: Path, vocab: Path, rows: int, count: int) -> Case:
    """Single texts from a data file of `cls`, in its order; what their labels are does not matter here."""
    reader = ClassifyReader(vocab, 64, do_lower_case=True)
    batches = _collated(reader, file, rows, count)
    return Case("short", "match", [{**batch, "label_ids": batch["label_ids"] % 2} for batch in batches])


def read_tagging(rows: int, count: int) -> Case:
    """The project's tagging data."""
    folder = DATA / "tagging"
    reader = SequenceLabelReader(DATA / "vocab.txt", 128, folder / "label_map.json", do_lower_case=True)
    batches = _collated(reader, folder / "train.tsv", rows, count)
    classes = 1 + max(int(batch["label_ids"].max()) for batch in batches)
    return Case("sequence labelling", "seq_label", batches, classes)


def _collated(reader: Reader, file: Path, rows: int, count: int) -> list[Tensors]:
    stream = TaskStream(
        "task", reader, training_rows(reader, file, None), batch_size=rows, seed=1, shuffle=False
    )
    return [stream.batch(k % stream.steps_per_epoch) for k in range(count)]


def made_up(kind: str, lengths: list[int], rows: int, seed: int = 0) -> Case:
    """Random words in rows of given lengths."""
    draw = np.random.default_rng(seed)
    groups = [lengths[start : start + rows] for start in range(0, len(lengths), rows)]
    batches = [_WITH_TARGETS[kind](_inputs(group, draw), draw) for group in groups]
    return Case(f"{kind} {max(lengths)}", kind, batches, NUM_TAGS if "word_mask" in batches[0] else 2)


def realistic_lengths(longest: int, mean: float, count: int) -> list[int]:
    """Lengths around a mean, cut at the longest, which occurs in every dozen."""
    draw = np.random.default_rng(1)
    lengths = np.clip(draw.normal(mean, 0.4 * (longest - mean) + 4, count), 16, longest).astype(int)
    lengths[::12] = longest
    return [int(length) for length in lengths]


def short_lengths(count: int) -> list[int]:
    """Lengths of questions and reviews: 14 on the average, 32 at most."""
    draw = np.random.default_rng(1)
    return [int(length) for length in np.clip(draw.normal(14, 5, count), 5, 32)]


def masked(case: Case) -> Case:
    """The rows of a case with 15 % of their words to be guessed."""
    draw = np.random.default_rng(2)
    return Case("mlm", "mlm", [_mlm(dict(batch), draw) for batch in case.batches])


def part_of(case: Case, number: int, count: int) -> Case:
    """One of equal parts of every batch."""
    cut = slice(number * case.rows // count, (number + 1) * case.rows // count)
    return replace(case, batches=[{name: value[cut] for name, value in b.items()} for b in case.batches])


def _inputs(lengths: list[int], draw: np.random.Generator) -> Tensors:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    columns = torch.arange(max(lengths)) * mask
    words = torch.from_numpy(draw.integers(FIRST_WORD, VOCABULARY, mask.shape)) * mask
    segments = (columns > torch.tensor(lengths)[:, None] // 3).long()
    return {"token_ids": words, "position_ids": columns, "segment_ids": segments, "input_mask": mask}


def _match(batch: Tensors, draw: np.random.Generator) -> Tensors:
    return {**batch, "label_ids": torch.from_numpy(draw.integers(0, 2, len(batch["input_mask"])))}


def _mrc(batch: Tensors, draw: np.random.Generator) -> Tensors:
    first = torch.from_numpy(draw.integers(1, 12, len(batch["input_mask"])))
    return {**batch, "start_positions": first, "end_positions": first + 2}


def _mlm(batch: Tensors, draw: np.random.Generator) -> Tensors:
    mask = batch["input_mask"].clone()
    mask[:, 0] = False
    places = (mask & torch.from_numpy(draw.random(mask.shape) < 0.15)).flatten().nonzero().squeeze(1)
    ids = batch["token_ids"].flatten().clone()
    labels = ids[places]
    ids[places] = MASK_ID
    return {**batch, "token_ids": ids.view_as(mask), "mask_pos": places, "mask_label": labels}


def _tags(batch: Tensors, draw: np.random.Generator) -> Tensors:
    first_pieces = torch.from_numpy(draw.random(batch["input_mask"].shape) < 0.7)
    words = batch["input_mask"] & first_pieces & (batch["position_ids"] > 0)
    labels = torch.from_numpy(draw.integers(0, NUM_TAGS, words.shape)) * words
    return {**batch, "word_mask": words, "label_ids": labels}


_WITH_TARGETS = {"match": _match, "mrc": _mrc, "mlm": _mlm, "seq_label": _tags, "crf": _tags}
