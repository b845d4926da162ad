"""The CRF's likelihoods and best sequences equal those found by trying every sequence."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palm.paradigm.crf import LinearChainCRF, scan


def crf_of(weight: Tensor) -> LinearChainCRF:
    crf = LinearChainCRF(weight.shape[1])
    with torch.no_grad():
        crf.weight.copy_(weight)
    return crf


def scores(weight: Tensor, emissions: Tensor) -> dict[tuple[int, ...], float]:
    """The score of every sequence of labels, added up one by one; `emissions` [words, classes]."""
    found = {}
    for labels in product(range(weight.shape[1]), repeat=len(emissions)):
        score = weight[0, labels[0]] + weight[1, labels[-1]]
        score += sum(emissions[word, label] for word, label in enumerate(labels))
        score += sum(weight[2 + a, b] for a, b in pairwise(labels))
        found[labels] = float(score)
    return found


def random(classes: int, lengths: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [classes + 2, classes], emissions and mask of texts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes + 2, classes, generator=generator)
    emissions = torch.randn(len(lengths), max(lengths), classes, generator=generator)
    return weight, emissions, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def check_against_enumeration(classes: int, lengths: list[int], seed: int) -> None:
    weight, emissions, mask = random(classes, lengths, seed)
    crf = crf_of(weight)
    best = crf.best_labels(emissions, mask)
    for row, length in enumerate(lengths):
        every = scores(weight, emissions[row, :length])
        total = torch.tensor(list(every.values()), dtype=torch.double).logsumexp(0).item()
        assert tuple(best[row, :length].tolist()) == max(every, key=every.__getitem__)
        assert (best[row, length:] == best[row, length - 1]).all()
        for labels in every:
            padded = torch.tensor([[*labels, *[0] * (mask.shape[1] - length)]])
            nll = crf.negative_log_likelihood(emissions[row : row + 1], padded, mask[row : row + 1])
            assert nll.item() == pytest.approx(total - every[labels], abs=2e-5)


@pytest.mark.parametrize("classes", [2, 3])
def test_all_sequences_of_up_to_five_words(classes: int) -> None:
    check_against_enumeration(classes, [1, 2, 3, 4, 5], seed=classes)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**31))
def test_any_batch_of_short_texts(classes: int, lengths: list[int], seed: int) -> None:
    check_against_enumeration(classes, lengths, seed)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(0, 2**31))
def test_a_text_in_a_batch_is_treated_as_alone(classes: int, lengths: list[int], seed: int) -> None:
    weight, emissions, mask = random(classes, lengths, seed)
    crf = crf_of(weight)
    labels = torch.randint(classes, mask.shape, generator=torch.Generator().manual_seed(seed))
    together, best = crf.negative_log_likelihood(emissions, labels, mask), crf.best_labels(emissions, mask)
    for row, length in enumerate(lengths):
        one = (slice(row, row + 1), slice(length))
        alone = crf.negative_log_likelihood(emissions[one], labels[one], mask[one])
        assert together[row].item() == pytest.approx(alone.item(), abs=1e-4)
        assert best[row, :length].tolist() == crf.best_labels(emissions[one], mask[one])[0].tolist()


def test_gradients_are_those_of_trying_every_sequence() -> None:
    weight, emissions, mask = random(3, [4, 1, 3], seed=6)
    labels, factors = torch.tensor([[0, 2, 1, 1], [2, 0, 0, 0], [1, 1, 0, 0]]), torch.tensor([2.0, -1.0, 0.5])
    crf, given = crf_of(weight), emissions.clone().requires_grad_()
    (factors * crf.negative_log_likelihood(given, labels, mask)).sum().backward()
    exact, each = weight.double().requires_grad_(), emissions.double().requires_grad_()
    total = torch.zeros((), dtype=torch.double)
    for row, length in enumerate((4, 1, 3)):
        every = {}
        for way in product(range(3), repeat=length):
            moves = [exact[0, way[0]], exact[1, way[-1]], *(exact[2 + a, b] for a, b in pairwise(way))]
            every[way] = sum(moves) + each[row, range(length), way].sum()
        likely = every[tuple(labels[row, :length].tolist())]
        total = total + factors[row] * (torch.stack(list(every.values())).logsumexp(0) - likely)
    total.backward()
    ours, expected = (crf.weight.grad, given.grad), (exact.grad, each.grad)
    torch.testing.assert_close(ours, expected, check_dtype=False, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 4, 7, 12])
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_blocks_side_by_side_are_one_word_after_another(size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(5)
    likely, first, moves = (
        (spread * torch.randn(2, *shape, generator=generator, dtype=torch.double)).clamp(-690, 0).exp()
        for shape in ((3, 13, 5), (3, 5), (5, 5))
    )
    likely[..., 2] = 1.0
    whole = scan(first, likely, moves, 13)
    for part, expected in zip(scan(first, likely, moves, size), whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-10, atol=0)


def test_long_texts_and_large_scores_stay_finite() -> None:
    weight, emissions, mask = random(5, [512, 300], seed=1)
    emissions = (100 * emissions).requires_grad_()
    nll = crf_of(weight).negative_log_likelihood(emissions, torch.zeros(2, 512, dtype=torch.long), mask)
    nll.sum().backward()
    assert nll.isfinite().all()
    assert (nll > 0).all()
    assert emissions.grad is not None
    assert emissions.grad.isfinite().all()
    assert (emissions.grad[1, 300:] == 0).all()
