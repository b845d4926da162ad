"""Exponential moving averages of a model's parameters, to evaluate, save and predict with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from palm.core.errors import ConfigError, StorageError
from palm.distributed.shards import local_shard, shard_like


class ExponentialMovingAverage:
    """Bias-corrected averages of parameters over the steps of training.

    After step t the average is `Σ decay^(t−i)·p_i / Σ decay^(t−i)` over the steps i = 1 … t, so
    the first ones are not drawn towards zero or towards the initial values. All parameters are
    averaged at every step, drawn or not: the average of one that never moved is itself, exactly.

    Args:
        named_parameters: what to average; the tensors are only read, except within `applied`.
        decay: weight of the past, at least 0 and below 1; 0 makes the average the parameter itself.

    Raises:
        ConfigError: for a decay outside its range.

    Attributes:
        average: parameter name -> its average, of the same shape, dtype and device.
        num_updates: how often `update` ran.
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

    def update(self, refuses: Tensor | None = None) -> None:
        """Take the parameters' present values in; to be called after every optimizer step.

        Args:
            refuses: 1 on the device where that step was refused, and the averages stay as they are.
        """
        self.num_updates += 1
        # Bias-corrected in place: the first average is the first value, not a fraction of it.
        weight = (1 - self.decay) / (1 - self.decay**self.num_updates)
        if refuses is None:
            torch._foreach_lerp_(self._values, self._parameters, weight)
            return
        # No lerp: one weight for all tensors is a number of the host, and this one lies on the device.
        changes = torch._foreach_sub(self._parameters, self._values)
        torch._foreach_mul_(changes, weight * (1 - refuses))
        torch._foreach_add_(self._values, changes)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the model has the averages; after it, its own values again, bit for bit."""
        # Copied, not exchanged: optimizers and fsdp hold the parameters' memory.
        own = [parameter.clone() for parameter in self._parameters]
        torch._foreach_copy_(self._parameters, self._values)
        try:
            yield
        finally:
            torch._foreach_copy_(self._parameters, own)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name, not copied, and `num_updates` as an int64 scalar."""
        return {**self.average, "num_updates": torch.tensor(self.num_updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from another's `state_dict`.

        Raises:
            StorageError: if it is of other parameters; nothing was changed.
        """
        here = {name: tensor.shape for name, tensor in self.state_dict().items()}
        there = {name: tensor.shape for name, tensor in state.items()}
        if strange := [name for name in {**here, **there} if here.get(name) != there.get(name)]:
            raise StorageError(
                f"the saved averages are of another model; they differ in {', '.join(strange)}"
            )
        self.num_updates = int(state["num_updates"])
        parts = [local_shard(shard_like(average, state[name])) for name, average in self.average.items()]
        torch._foreach_copy_(self._values, parts)
