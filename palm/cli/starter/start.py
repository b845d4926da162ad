"""Initial weights of a project's small encoder, from the words of its rows.

Words that occur together begin with similar vectors, so an encoder that has only a few hundred rows need not
learn this from labels. If tasks compare two texts, tokens begin by attending to similar tokens of the other
text: few rows do not teach attention to compare. If all tasks ask what two texts have in common, tokens begin
by subtracting equal tokens of the other text, and a feature tells how rare the rest is. If tasks label words,
they begin by attending to the token before and the one after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CONTEXTS = 1000
"""Number of the most frequent words whose neighbourhood describes a word."""

SHARPNESS = 2.0
"""Factor on scores with which tokens attend to their neighbours."""

CONTRAST = 4.0
"""Factor on scores with which tokens attend to tokens that they subtract: equal ones, rather than similar."""

REST = 12.0
"""Factor on the score of [SEP], to which tokens attend that have no equal."""

RARITY = 8.0
"""Factor on the feature of rare words in the encoder's output; a head learns a large feature first."""

WORDS = 8000
"""Number of the most frequent words that are described; others begin at random."""

AT_ONCE = 256
"""Number of texts that are counted in one matrix product."""


def weights_of(
    config: Mapping[str, Any],
    texts: Sequence[Sequence[int]],
    first: int,
    compares: bool,
    has_order: bool = False,
    separator: int | None = None,
) -> dict[str, Array]:
    """Return the weights of a BERT, by their names at Hugging Face.

    Args:
        config: sizes of the encoder.
        texts: the word ids of each text; frequent words have low ids.
        first: lowest id of a word; lower ids are special tokens.
        compares: True if a row has two texts that are compared.
        has_order: True if words are labelled, so that the words beside a word matter.
        separator: id of [SEP] if all tasks ask what two texts have in common (and `compares`); else None.
    """
    rng = np.random.default_rng(1)
    width = config["hidden_size"]
    deviation = config["initializer_range"]

    def random(*shape: int) -> Array:
        return rng.normal(0, deviation, shape).astype(np.float32)

    words, positions, segment = _vectors(random, rng, config, texts, first, compares)
    if separator is not None:
        words, segment = _with_rarity(words, positions, segment, texts)
    length = deviation * width**0.5  # of a random vector
    if has_order:
        positions = _waves(len(positions), width)
    segments = np.outer([length, -length], segment)
    tables = {"word": words * length, "position": positions * length, "token_type": segments}
    weights = {f"embeddings.{name}_embeddings.weight": table for name, table in tables.items()}
    weights |= _norm("embeddings", width)
    for layer in range(config["num_hidden_layers"]):
        attention = {name: random(width, width) for name in ("query", "key", "value", "output")}
        if compares:
            attention = _comparison(rng, segment) if separator is None else _subtraction(rng, segment)
        elif has_order:
            attention = _neighbours(rng, width)
        inner = config["intermediate_size"]
        linear = {"intermediate.dense": random(inner, width), "output.dense": random(width, inner)}
        place = f"encoder.layer.{layer}"
        weights |= _layer(place, attention, linear, width)
        if separator is not None:
            weights[f"{place}.attention.self.query.bias"] = REST * attention["key"] @ words[separator]
            weights[f"{place}.output.LayerNorm.weight"][0] = RARITY
    return {name: np.ascontiguousarray(values, np.float32) for name, values in weights.items()}


def _vectors(
    random: Callable[..., Array],
    rng: np.random.Generator,
    config: Mapping[str, Any],
    texts: Sequence[Sequence[int]],
    first: int,
    compares: bool,
) -> tuple[Array, Array, Array]:
    """Return the vectors of words, of length 1, of positions and of the first segment, of length 1."""
    width = config["hidden_size"]
    words = _unit(random(config["vocab_size"], width))
    found = word_vectors(texts, first, min(config["vocab_size"] - first, WORDS), width)
    turned = found @ _orthogonal(rng, width)[: found.shape[1]]  # spread over all features
    # A part of its own tells words of the same texts apart; a comparison finds what they have in common.
    words[first : first + len(turned)] += 2 * turned if compares else turned
    segment = _unit(random(1, width))[0]
    return _unit(words), random(config["max_position_embeddings"], width), segment


def _layer(
    prefix: str, attention: Mapping[str, Array], linear: Mapping[str, Array], width: int
) -> dict[str, Array]:
    matrices = {
        **{f"attention.self.{name}": attention[name] for name in ("query", "key", "value")},
        "attention.output.dense": attention["output"],
        **linear,
    }
    weights = {f"{prefix}.{name}.weight": matrix for name, matrix in matrices.items()}
    weights |= {f"{prefix}.{name}.bias": np.zeros(len(matrix)) for name, matrix in matrices.items()}
    return weights | _norm(f"{prefix}.attention.output", width) | _norm(f"{prefix}.output", width)


def word_vectors(texts: Iterable[Sequence[int]], first: int, count: int, dims: int) -> Array:
    """Describe words by the words that occur in the same texts, as vectors of length 1.

    The vectors factorize the positive pointwise mutual information of words and frequent words.

    Args:
        texts: the word ids of each text.
        first: the id of the most frequent word.
        count: number of words to describe, the most frequent ones.
        dims: maximum width of the vectors.

    Returns:
        [count, at most dims]; zeros for a word that has no neighbours.

    Source: Levy and Goldberg, 2014, "Neural word embedding as implicit matrix factorization", section 3.
    """
    together = np.zeros((count, min(count, CONTEXTS)), np.float32)
    rows = [[word - first for word in text if first <= word < first + count] for text in texts]
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        counts = np.zeros((len(part), count), np.float32)
        for number, row in enumerate(part):
            np.add.at(counts[number], row, 1)
        together += counts.T @ counts[:, : together.shape[1]]
    np.fill_diagonal(together, 0)
    expected = np.outer(together.sum(1), together.sum(0)) / max(together.sum(), 1)
    ratio = np.divide(together, expected, out=np.ones_like(together), where=together > 0)
    information = np.log(np.maximum(ratio, 1))
    squares, contexts = np.linalg.eigh(information.T @ information)
    largest = [k for k in np.argsort(squares)[::-1][:dims] if squares[k] > 1e-6]
    # U times the root of the singular values; the eigenvalues are their squares.
    return _unit(information @ contexts[:, largest] * squares[largest] ** -0.25)


def _comparison(rng: np.random.Generator, segment: Array) -> dict[str, Array]:
    """Attention to similar tokens of the other segment, which adds what they are as other features."""
    turn = _orthogonal(rng, len(segment))
    other = np.eye(len(segment)) - 2 * np.outer(segment, segment)  # the same token in the other segment
    return {
        "query": turn,
        "key": turn @ other,
        "value": _orthogonal(rng, len(segment)),
        "output": _orthogonal(rng, len(segment)) / 2,
    }


def _subtraction(rng: np.random.Generator, segment: Array) -> dict[str, Array]:
    """Attention to equal tokens of the other segment, which subtracts them; only the segment is left."""
    attention = _comparison(rng, segment)
    attention["query"] *= CONTRAST
    attention["key"][:, 0] = 0  # words that are equally rare are not similar
    attention["output"] = -attention["value"].T
    return attention


def _with_rarity(
    words: Array, positions: Array, segment: Array, texts: Sequence[Sequence[int]]
) -> tuple[Array, Array]:
    """Return words and segment whose first feature, and that of positions, is only how rare a word is."""
    words[:, 0] = positions[:, 0] = segment[0] = 0
    words = _unit(words)
    words[:, 0] = _rarity(texts, len(words))
    return words, _unit(segment[None])[0]


def _rarity(texts: Sequence[Sequence[int]], count: int) -> Array:
    """Return the squared inverse document frequency of words, from 0 to 1, [count]."""
    found = np.zeros(count)
    for text in texts:
        found[list({*text})] += 1
    logs = np.log(np.maximum(len(texts), 2) / np.maximum(found, 1)) / np.log(max(len(texts), 2))
    return np.where(found > 0, logs, 0) ** 2


def _angles(width: int) -> Array:
    """Return the angle between two positions in each wave."""
    angles: Array = np.pi * (np.arange(width // 2) + 0.5) / (width // 2)
    return angles


def _waves(count: int, width: int) -> Array:
    """Return positions as cosines and sines, [count, width], of length 1 and nearly orthogonal."""
    turned = np.outer(np.arange(count), _angles(width))
    waves: Array = np.concatenate([np.cos(turned), np.sin(turned)], 1) / (width // 2) ** 0.5
    return waves


def _neighbours(rng: np.random.Generator, width: int) -> dict[str, Array]:
    """Return an attention with one head on the token before, and another on the token after."""
    queries, keys = [], []
    every = np.eye(width)
    for head, sign in enumerate((1, -1)):
        waves = np.arange(head, width // 2, 2)
        cosines, sines = every[waves], every[waves + width // 2]
        angles = sign * _angles(width)[waves, None]
        queries += [cosines * np.cos(angles) + sines * np.sin(angles)]
        queries += [sines * np.cos(angles) - cosines * np.sin(angles)]
        keys += [cosines, sines]
    return {
        "query": np.concatenate(queries) * SHARPNESS,
        "key": np.concatenate(keys),
        "value": _orthogonal(rng, width),
        "output": _orthogonal(rng, width) / 2,
    }


def _orthogonal(rng: np.random.Generator, width: int) -> Array:
    turn: Array = np.linalg.qr(rng.standard_normal((width, width)))[0]
    return turn


def _unit(vectors: Array) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-6)
    return unit


def _norm(place: str, width: int) -> dict[str, Array]:
    return {
        f"{place}.LayerNorm.weight": np.ones(width, np.float32),
        f"{place}.LayerNorm.bias": np.zeros(width, np.float32),
    }
