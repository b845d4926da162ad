"""The weights of several models as one: their mean, with a share for each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from palm.core.differences import ABSENT, changes, shortened
from palm.core.errors import ConfigError, StorageError
from palm.engine.run.checkpoint import TrainedWeights

MOST_DIFFERENCES = 4
"""Differences that a message names."""


def normalized_shares(shares: Sequence[float] | None, count: int) -> list[float]:
    """Shares that add up to 1, equal ones where None.

    Raises:
        ConfigError: not one for each model, or none above 0.
    """
    if shares is None:
        return [1 / count] * count
    if len(shares) != count:
        raise ConfigError([f"weights: {len(shares)} for {count} models; give one for each, or none"])
    if not all(0 <= share < math.inf for share in shares) or not sum(shares) > 0:
        raise ConfigError([f"weights should be 0 or more, and one of them above 0, not {list(shares)}"])
    return [share / sum(shares) for share in shares]


def mean_of(
    models: Sequence[Mapping[str, Tensor]], shares: Sequence[float], names: Sequence[str]
) -> dict[str, Tensor]:
    """The weighted mean of every tensor, computed in float64 and rounded once.

    What has no share takes no part, so that a model with all of it stays as it is, bit for bit.

    Args:
        models: tensors by name.
        shares: of each; they add up to 1.
        names: what messages call the models.

    Raises:
        StorageError: they differ in names or shapes, or in tensors of whole numbers.
    """
    first = models[0]
    for name, other in zip(names[1:], models[1:], strict=True):
        if found := _differences(first, other):
            raise StorageError(
                f"{names[0]} and {name} are not built alike, so they have no mean: "
                f"{'; '.join(shortened(found, MOST_DIFFERENCES))}"
            )
    taken = [(model, share) for model, share in zip(models, shares, strict=True) if share]
    if len(taken) == 1:
        return dict(taken[0][0])
    mean = {}
    for name, value in first.items():
        if value.is_floating_point():
            total = torch.stack([model[name].double() * share for model, share in taken]).sum(0)
            mean[name] = total.to(value.dtype)
        else:
            mean[name] = value
    return mean


def _differences(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    ours = {name: _shown(value) for name, value in one.items()}
    theirs = {name: _shown(value) for name, value in other.items()}
    found = [
        f"only one has {path[0]}" if ABSENT in (old, new) else f"{path[0]} is {old} and {new}"
        for path, old, new in changes(ours, theirs)
    ]
    found += [
        f"{name} holds other whole numbers"
        for name, value in one.items()
        if ours[name] == theirs.get(name) and not value.is_floating_point()
        if not torch.equal(value, other[name])
    ]
    return sorted(found)


def _shown(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def between(one: TrainedWeights, other: TrainedWeights, share: float, names: Sequence[str]) -> TrainedWeights:
    """The weights at a share of the way from one to the other; at 0 those of the first, bit for bit.

    A head that only one of them has is taken from it.

    Raises:
        StorageError: they are not built alike.
    """
    shares = (1 - share, share)
    heads = {**other.heads, **one.heads}
    for task in one.heads.keys() & other.heads.keys():
        heads[task] = mean_of([one.heads[task], other.heads[task]], shares, names)
    return TrainedWeights(mean_of([one.backbone, other.backbone], shares, names), heads)
