"""Linear-chain conditional random field: likelihood and most likely sequence of labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class LinearChainCRF(nn.Module):
    """CRF with a weight for every transition, every first label and every last label.

    The score of a sequence is the sum of its emissions and of these weights; its probability is the softmax
    of the score over all sequences of its length. Weights are initialized to 0, which makes every label
    independent of its neighbours.

    Args:
        n_classes: number of labels.

    Attributes:
        weight: [n_classes + 2, n_classes]: row 0 for the first label, row 1 for the last one, and row
            `2 + i` for every label after label i. This is PaddlePALM's `crfw`.

    Source: Lafferty et al., 2001; the recursions are those of Rabiner, 1989, sections III A and B, in
    log space.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_classes + 2, n_classes))

    def negative_log_likelihood(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Compute the exact negative log-likelihood of the sequences, in fp32.

        Args:
            emissions: float [batch, words, n_classes].
            labels: int64 [batch, words]; any label where `mask` is False.
            mask: bool [batch, words], True on the words of a sequence; at least one, without gaps from 0 on.

        Returns:
            float32 [batch].
        """
        emissions = emissions.float()
        start, end, transitions = self._weights()
        log_partition: Tensor = LogPartition.apply(  # type: ignore[no-untyped-call]
            emissions, start, end, transitions, mask
        )
        # Texts differ in length; the weight of a last label belongs to the last real word.
        last = labels.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        emitted = emissions.gather(2, labels[:, :, None]).squeeze(2) * mask
        moved = transitions[labels[:, :-1], labels[:, 1:]] * mask[:, 1:]
        score = start[labels[:, 0]] + emitted.sum(1) + moved.sum(1) + end[last]
        return log_partition - score

    @torch.no_grad()
    def best_labels(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """Find the most likely sequences (Viterbi algorithm); ties go to the lower label, from the end.

        Args:
            emissions: float [batch, words, n_classes].
            mask: bool [batch, words], True on the words of a sequence; at least one, without gaps from 0 on.

        Returns:
            int64 [batch, words]; where `mask` is False, the last label is repeated.
        """
        start, end, transitions = (weight.to(emissions.device) for weight in self._weights())
        score = start + emissions[:, 0].float()  # [batch, n_classes], of the best path to every label
        stay = torch.arange(len(start), device=score.device)
        steps = []
        for emission, real in zip(emissions.unbind(1)[1:], mask[:, :, None].unbind(1)[1:], strict=True):
            best, came_from = (score[:, :, None] + transitions).max(1)
            score = torch.where(real, best + emission.float(), score)
            steps.append(torch.where(real, came_from, stay))  # after its end, a text keeps its label
        labels = [(score + end).argmax(1, keepdim=True)]
        for came_from in reversed(steps):
            labels.append(came_from.gather(1, labels[-1]))
        return torch.cat(labels[::-1], dim=1)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of first and of last labels [n_classes], and of transitions [from, to]."""
        weight = self.weight.float()
        return weight[0], weight[1], weight[2:]


LOWEST = -690.0
"""Lower bound of a logarithm relative to the highest; below it, all paths of a text could underflow to 0."""

MAX_LABELS = 32
"""With more labels, scanning a block from every label costs a GPU more than the kernel launches saved."""

MIN_WORDS = 24
"""With fewer words, blocks do not reduce the number of kernels."""


def block_size(emissions: Tensor) -> int:
    """Choose the number of words scanned sequentially; all of them on a CPU, where that is fastest.

    A GPU kernel takes as long for all blocks as for one, so the sequential steps are twice the words of a
    block plus the number of blocks.
    """
    words, n_classes = emissions.shape[1:]
    pays = emissions.is_cuda and n_classes <= MAX_LABELS and words >= MIN_WORDS
    return math.ceil(math.sqrt(words / 2)) if pays else words


def scan(arriving: Tensor, likely: Tensor, moves: Tensor, size: int) -> list[Tensor]:
    """Scan the words of texts in both directions, in blocks that are computed in parallel.

    Args:
        arriving: probabilities of the first word's labels before its emission, [2, batch, n_classes].
        likely: factors of the emissions, [2, batch, words, n_classes].
        moves: factors of the transitions, [2, from, to].
        size: words per block.

    Returns:
        For every word, the label probabilities before and after its emission, [2, batch, words, n_classes];
        and the sum by which the latter were normalized, [2, batch, words, 1].
    """
    _, batch, words, n_classes = likely.shape
    if size >= words:
        return [torch.stack(steps, 2) for steps in _scan_words(arriving, likely, moves)]
    blocks = -(-words // size)
    # Padding with factors of 1 changes no probability; it is cut off at the end.
    padded = F.pad(likely, (0, 0, 0, blocks * size - words), value=1.0)
    parts = padded.reshape(2, batch * blocks, size, n_classes)
    # Scan each block from every single label; the paths through all blocks are then composed block by block.
    one_hot = torch.eye(n_classes, dtype=likely.dtype, device=likely.device).repeat(2, batch * blocks, 1)
    copies = parts[:, :, None].expand(-1, -1, n_classes, -1, -1).flatten(1, 2)
    _, after, sums = _scan_words(one_hot, copies, moves)
    ends = after[-1].view(2, batch, blocks, n_classes, n_classes).unbind(2)
    heights = torch.cat(sums, 2).log().sum(2).view(2, batch, blocks, n_classes).unbind(2)
    starts = []
    for end, height in zip(ends, heights, strict=True):
        starts.append(arriving)
        # The paths from each label were normalized separately; their sums restore the relative weights.
        path = (arriving.log() + height).softmax(2)
        arriving = (path[:, :, None] @ end)[:, :, 0] @ moves
    steps = _scan_words(torch.stack(starts, 2).flatten(1, 2), parts, moves)
    return [torch.stack(each, 2).view(2, batch, blocks * size, -1)[:, :, :words] for each in steps]


def _scan_words(
    arriving: Tensor, likely: Tensor, moves: Tensor
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Scan word by word; the values are those of `scan`, before they are stacked."""
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
    """Logarithm of the partition function: the log-sum-exp of the scores of all sequences.

    Both directions are computed in one pass of matrix products: a sum over labels needs no logarithm, and the
    gradient, a probability, needs no second pass. Scores are exponentials in double precision, normalized at
    every word; a score more than 690 below the highest of its kind counts as 690 below.

    Source: Rabiner, 1989, sections III A, III B and V A (scaling).
    """

    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, start: Tensor, end: Tensor, transitions: Tensor, mask: Tensor
    ) -> Tensor:
        """Compute float32 [batch] from the arguments of the likelihood and the weights in fp32."""
        lengths = mask.sum(1)
        # Each word's factors are divided by the highest one, so no exponential overflows.
        highest = emissions.amax(2)
        likely = (emissions.double() - highest[:, :, None]).clamp(min=LOWEST).exp()
        words = torch.arange(mask.shape[1], device=mask.device)
        # Position of each word counted from the end of its text: the backward scan is a forward scan of it.
        from_end = (lengths[:, None] - 1 - words).clamp(min=0)[:, :, None].expand_as(likely)
        edges = torch.stack([start, end]).double()
        moves = torch.stack([transitions, transitions.T]).double()
        constant = edges.amax(1).sum() + (lengths - 1) * transitions.max()
        # Forward from the first word and backward from the last one; padding is not read.
        edge_factors = (edges - edges.amax(1, keepdim=True)).clamp(min=LOWEST).exp()
        move_factors = (moves - transitions.max()).clamp(min=LOWEST).exp()
        arriving = edge_factors[:, None].expand(2, len(lengths), -1)
        both = torch.stack([likely, likely.gather(1, from_end)])
        before, after, scale = scan(arriving, both, move_factors, block_size(emissions))
        forwards = after[0]  # [batch, words, n_classes]
        backwards = after[1].gather(1, from_end)
        following = before[1].gather(1, from_end)
        # Equal at every word up to scaling; dividing by it makes the products below probabilities.
        joint = (forwards * following).sum(2)
        last = joint.gather(1, lengths[:, None] - 1)[:, 0]
        found = ((scale[0, :, :, 0].log() + highest) * mask).sum(1) + last.log() + constant
        ctx.save_for_backward(forwards / joint[:, :, None], following, backwards, move_factors[0], mask)
        return found.float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients: the marginal probabilities of labels and transitions."""
        forwards, following, backwards, move_factors, mask = ctx.saved_tensors
        labels = forwards * following * (grad[:, None] * mask)[:, :, None]
        last = labels.gather(1, (mask.sum(1) - 1)[:, None, None].expand(-1, 1, labels.shape[2]))
        weighted = forwards[:, :-1] * (grad[:, None] * mask[:, 1:])[:, :, None]
        pairs = weighted.flatten(0, 1).T @ backwards[:, 1:].flatten(0, 1) * move_factors
        return labels.float(), labels[:, 0].sum(0).float(), last.sum((0, 1)).float(), pairs.float(), None
