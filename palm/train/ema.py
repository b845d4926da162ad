"""Exponential moving averages of a model's parameters, for evaluation, saving and prediction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from palm.core.errors import ConfigError, StorageError
from palm.parallel.shards import local_shard, shard_like


class ExponentialMovingAverage:
    """Bias-corrected averages of parameters over the steps of training.

    After step t the average is `Σ decay^(t−i)·p_i / Σ decay^(t−i)` over the steps i = 1 … t, so
    early averages are not biased towards zero or the initial values. All parameters are averaged at
    every step, whether their task was drawn or not; one that never changed is its own average, exactly.

    Args:
        named_parameters: the parameters to average; they are changed only within `applied`.
        decay: weight of the past, at least 0 and below 1; with 0 the average is the parameter itself.

    Raises:
        ConfigError: the decay is out of range.

    Attributes:
        average: parameter name -> its average, of the same shape, dtype and device.
        num_updates: number of calls of `update`.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"ema_decay should be at least 0 and below 1, not {decay!r}")
        self.decay = decay
        self.num_updates = 0
        named = dict(named_parameters)
        self.average = {name: parameter.detach().clone() for name, parameter in named.items()}
        self._values = [local_shard(value) for value in self.average.values()]
        self._parameters = [local_shard(parameter.detach()) for parameter in named.values()]

    def update(self, skips: Tensor | None = None) -> None:
        """Add the parameters' present values; call it after every optimizer step.

        Args:
            skips: scalar on the device, 1 if that step was skipped; the averages then do not change.
        """
        self.num_updates += 1
        # With this weight the stored averages are always bias-corrected.
        weight = (1 - self.decay) / (1 - self.decay**self.num_updates)
        if skips is None:
            torch._foreach_lerp_(self._values, self._parameters, weight)
            return
        # lerp with one weight for all tensors takes it from the host, and this weight is on the device.
        changes = torch._foreach_sub(self._parameters, self._values)
        torch._foreach_mul_(changes, weight * (1 - skips))
        torch._foreach_add_(self._values, changes)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the model's values by the averages within the context, and restore them exactly."""
        # Values are copied, not swapped, because optimizers and FSDP refer to the parameters' memory.
        own = [parameter.clone() for parameter in self._parameters]
        torch._foreach_copy_(self._parameters, self._values)
        try:
            yield
        finally:
            torch._foreach_copy_(self._parameters, own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by parameter name, not copied, and `num_updates` as an int64 scalar."""
        return {**self.average, "num_updates": torch.tensor(self.num_updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the averages that `state_dict` returned.

        Raises:
            StorageError: they are of other parameters; nothing was changed.
        """
        here = {name: tensor.shape for name, tensor in self.state_dict().items()}
        there = {name: tensor.shape for name, tensor in state.items()}
        if different := [name for name in {**here, **there} if here.get(name) != there.get(name)]:
            raise StorageError(
                f"the saved averages are of another model; they differ in {', '.join(different)}"
            )
        self.num_updates = int(state["num_updates"])
        parts = [local_shard(shard_like(average, state[name])) for name, average in self.average.items()]
        torch._foreach_copy_(self._values, parts)
