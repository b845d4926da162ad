"""A linear-chain conditional random field: how likely a sequence of labels is, and which one is likeliest."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        log_partition = self._log_partition(emissions, mask)
        start, end, transitions = self._weights()
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
            steps.append(torch.where(real, came_from, stay))
        labels = [(score + end).argmax(1, keepdim=True)]
        for came_from in reversed(steps):
            labels.append(came_from.gather(1, labels[-1]))
        return torch.cat(labels[::-1], dim=1)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the first label and of the last one [n_classes], and from label to label [from, to]."""
        weight = self.weight.float()
        return weight[0], weight[1], weight[2:]

    def _log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The logarithm of the sum over all sequences of the exponential of their score, [batch]."""
        start, end, transitions = self._weights()
        total = start + emissions[:, 0]  # [batch, n_classes], over all ways to every label
        for emission, real in _following(emissions, mask):
            longer = (total[:, :, None] + transitions).logsumexp(1) + emission
            total = torch.where(real, longer, total)
        return (total + end).logsumexp(1)


def _following(emissions: Tensor, mask: Tensor) -> zip[tuple[Tensor, Tensor]]:
    """The emissions [batch, n_classes] and the mask [batch, 1] of every word after the first."""
    return zip(emissions.unbind(1)[1:], mask[:, :, None].unbind(1)[1:], strict=True)
