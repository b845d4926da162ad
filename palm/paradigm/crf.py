"""A linear-chain conditional random field: how likely a sequence of labels is, and which one is likeliest."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class LinearChainCRF(nn.Module):
    """Labels depend on their neighbours: a weight for every pair, for every first and every last label.

    The score of a sequence is the sum of its emissions and of these weights; its probability is the
    softmax of that over all sequences of its length. Weights start at 0, where every label is
    independent of its neighbours.

    Args:
        n_classes: number of labels.

    Attributes:
        weight: [n_classes + 2, n_classes]: row 0 of the first label, row 1 of the last one, and row
            `2 + i` of every label after label i. This is PaddlePALM's `crfw`.

    Source: Lafferty et al., 2001; the recursions are those of Rabiner, 1989, sections III A and B, in
    logarithms.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_classes + 2, n_classes))

    def negative_log_likelihood(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Minus the logarithm of the sequences' probabilities, exact, in fp32.

        Args:
            emissions: float [batch, words, n_classes].
            labels: int64 [batch, words]; any label where `mask` is False.
            mask: bool [batch, words], True on the words of a sequence, which stand first; at least one.

        Returns:
            float32 [batch].
        """
        emissions = emissions.float()
        start, end, transitions = self._weights()
        log_partition: Tensor = LogPartition.apply(  # type: ignore[no-untyped-call]
            emissions, start, end, transitions, mask
        )
        # Texts end at different words, and the weight of an end belongs to the last real one.
        last = labels.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        emitted = emissions.gather(2, labels[:, :, None]).squeeze(2) * mask
        moved = transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]
        score = start[labels[:, 0]] + emitted.sum(1) + moved.sum(1) + end[last]
        return log_partition - score

    @torch.no_grad()
    def best_labels(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The likeliest sequences, by Viterbi's algorithm; ties go to the lower label, from the end.

        Args:
            emissions: float [batch, words, n_classes].
            mask: bool [batch, words], True on the words of a sequence, which stand first; at least one.

        Returns:
            int64 [batch, words]; where `mask` is False, it repeats the last label.
        """
        start, end, transitions = (weight.to(emissions.device) for weight in self._weights())
        score = start + emissions[:, 0].float()  # [batch, n_classes], of the best way to every label
        stay = torch.arange(len(start), device=score.device)
        steps = []
        for emission, real in _following(emissions, mask):
            best, came_from = (score[:, :, None] + transitions).max(1)
            score = torch.where(real, best + emission.float(), score)
            steps.append(torch.where(real, came_from, stay))  # behind its end, a text stays at its label
        labels = [(score + end).argmax(1, keepdim=True)]
        for came_from in reversed(steps):
            labels.append(came_from.gather(1, labels[-1]))
        return torch.cat(labels[::-1], dim=1)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the first label and of the last one [n_classes], and from label to label [from, to]."""
        weight = self.weight.float()
        return weight[0], weight[1], weight[2:]


def _following(emissions: Tensor, mask: Tensor) -> zip[tuple[Tensor, Tensor]]:
    """The emissions [batch, n_classes] and the mask [batch, 1] of every word after the first."""
    return zip(emissions.unbind(1)[1:], mask[:, :, None].unbind(1)[1:], strict=True)


LOWEST = -690.0
"""Of a logarithm, relative to the highest: a lower one's exponential could make all of a text's ways zero."""

MOST_LABELS = 32
"""With more of them, the ways from each label through a block cost a GPU more than launching kernels."""

FEWEST_WORDS = 24
"""With fewer of them, blocks take no fewer kernels."""


def block_size(emissions: Tensor) -> int:
    """Choose the words that are gone through one after another; on a CPU all of them, which costs the least.

    A GPU takes as long for a kernel on all blocks as on one: it goes twice through the words of a block, and
    once through the blocks.
    """
    words, n_classes = emissions.shape[1:]
    pays = emissions.is_cuda and n_classes <= MOST_LABELS and words >= FEWEST_WORDS
    return math.ceil(math.sqrt(words / 2)) if pays else words


def scanned(arriving: Tensor, likely: Tensor, moves: Tensor, size: int) -> list[Tensor]:
    """Go through the words of texts, in both directions, in blocks that are computed side by side.

    Args:
        arriving: probabilities of the first word's labels before its emission, [2, batch, n_classes].
        likely: factors of the emissions, [2, batch, words, n_classes].
        moves: factors from label to label, [2, from, to].
        size: words of a block.

    Returns:
        Of every word, the labels' probabilities before its emission, and after it, [2, batch, words,
        n_classes]; and the sum by which the latter were divided, [2, batch, words, 1].
    """
    _, batch, words, n_classes = likely.shape
    if size >= words:
        return [torch.stack(steps, 2) for steps in _word_by_word(arriving, likely, moves)]
    blocks = -(-words // size)
    # Filled up with factors of 1, which change no probability, and cut off at the end.
    padded = F.pad(likely, (0, 0, 0, blocks * size - words), value=1.0)
    parts = padded.reshape(2, batch * blocks, size, n_classes)
    # From each label alone through each block: the ways through all of them follow, block by block.
    alone = torch.eye(n_classes, dtype=likely.dtype, device=likely.device).repeat(2, batch * blocks, 1)
    copies = parts[:, :, None].expand(-1, -1, n_classes, -1, -1).flatten(1, 2)
    _, after, sums = _word_by_word(alone, copies, moves)
    ends = after[-1].view(2, batch, blocks, n_classes, n_classes).unbind(2)
    heights = torch.cat(sums, 2).log().sum(2).view(2, batch, blocks, n_classes).unbind(2)
    starts = []
    for end, height in zip(ends, heights, strict=True):
        starts.append(arriving)
        # Each label's way through the block was scaled by itself; the sums of that weigh the labels again.
        way = (arriving.log() + height).softmax(2)
        arriving = (way[:, :, None] @ end)[:, :, 0] @ moves
    steps = _word_by_word(torch.stack(starts, 2).flatten(1, 2), parts, moves)
    return [torch.stack(each, 2).view(2, batch, blocks * size, -1)[:, :, :words] for each in steps]


def _word_by_word(
    arriving: Tensor, likely: Tensor, moves: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return, word by word, what `scanned` returns."""
    before = []
    after = []
    sums = []
    for likely_labels in likely.unbind(2):
        before.append(arriving)
        reached = arriving * likely_labels
        sums.append(reached.sum(2, keepdim=True))
        after.append(reached / sums[-1])
        arriving = after[-1] @ moves
    return before, after, sums


class LogPartition(Function):
    """The logarithm of the sum over all sequences of the exponential of their score.

    Both directions are computed in one pass, in products of matrices: a sum over labels costs no
    logarithm, and the gradient, which is a probability, needs no second pass. Scores are exponentials in
    double precision, scaled at every word of a text: what is further than 690 below the highest score of its
    kind counts as 690 below.

    Source: Rabiner, 1989, sections III A, III B and V A (scaling).
    """

    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, start: Tensor, end: Tensor, transitions: Tensor, mask: Tensor
    ) -> Tensor:
        """Return float32 [batch]; the arguments are those of the likelihood, and its weights in fp32."""
        lengths = mask.sum(1)
        # Each word's factors are divided by its highest one, so that no exponential overflows.
        highest = emissions.amax(2)
        likely = (emissions.double() - highest[:, :, None]).clamp(min=LOWEST).exp()
        words = torch.arange(mask.shape[1], device=mask.device)
        # Place of each word counted from its text's end: the backward pass is the forward pass of this order.
        from_end = (lengths[:, None] - 1 - words).clamp(min=0)[:, :, None].expand_as(likely)
        edges = torch.stack([start, end]).double()
        moves = torch.stack([transitions, transitions.T]).double()
        constant = edges.amax(1).sum() + (lengths - 1) * transitions.max()
        # Forwards from the first word and backwards from the last one; what comes after a text is not read.
        edge_factors = (edges - edges.amax(1, keepdim=True)).clamp(min=LOWEST).exp()
        move_factors = (moves - transitions.max()).clamp(min=LOWEST).exp()
        arriving = edge_factors[:, None].expand(2, len(lengths), -1)
        both = torch.stack([likely, likely.gather(1, from_end)])
        before, after, scale = scanned(arriving, both, move_factors, block_size(emissions))
        forwards = after[0]  # [batch, words, n_classes]
        backwards = after[1].gather(1, from_end)
        following = before[1].gather(1, from_end)
        # The same at every word but for scaling; divided by it, products below are probabilities.
        joint = (forwards * following).sum(2)
        last = joint.gather(1, lengths[:, None] - 1)[:, 0]
        found = ((scale[0, :, :, 0].log() + highest) * mask).sum(1) + last.log() + constant
        ctx.save_for_backward(forwards / joint[:, :, None], following, backwards, move_factors[0], mask)
        return found.float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of a score is the probability of what it scores."""
        forwards, following, backwards, move_factors, mask = ctx.saved_tensors
        labels = forwards * following * (grad[:, None] * mask)[:, :, None]
        last = labels.gather(1, (mask.sum(1) - 1)[:, None, None].expand(-1, 1, labels.shape[2]))
        weighted = forwards[:, :-1] * (grad[:, None] * mask[:, 1:])[:, :, None]
        pairs = weighted.flatten(0, 1).T @ backwards[:, 1:].flatten(0, 1) * move_factors
        return labels.float(), labels[:, 0].sum(0).float(), last.sum((0, 1)).float(), pairs.float(), None
