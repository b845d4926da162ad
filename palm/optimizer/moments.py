"""Optimizers that keep running means of gradients and of their squares: Adam and its kin."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from palm.core.checks import choice_problems, number_problems, positive_problems, raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.registry import imported
from palm.distributed.shards import local_shard
from palm.optimizer.base import GRAD_CLIP_TYPES, GradClipType, Optimizer

DecayRule = Callable[[str], bool]
"""A parameter's name -> whether it decays."""

Group = dict[str, Any]
"""Parameters with settings of their own, as torch's optimizers take them."""


class MomentOptimizer(Optimizer):
    """Settings that Adam and its kin share.

    Args:
        learning_rate: the rate that the schedule multiplies.
        weight_decay: share of a parameter, per unit of rate, that each step takes away.
        grad_clip: what gradients are clipped to before the step; None for no clipping.
        grad_clip_type: `global_norm` scales all gradients together, `norm` each parameter's by itself,
            `value` cuts off every element.
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients.
        epsilon: added to the root of the latter, against division by zero.
        apply_decay_param_fun: which parameters decay: a function from a parameter's name to true or false,
            or its dotted path; all but biases and layer norms where absent.

        own: settings of `take`.

    Raises:
        ConfigError: for values outside their range.
    """

    own_settings = "take"

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        grad_clip: float | None = 1.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        grad_clip_type: GradClipType = "global_norm",
        apply_decay_param_fun: DecayRule | str | None = None,
        **own: Any,
    ) -> None:
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.grad_clip = grad_clip
        self.grad_clip_type = grad_clip_type
        self.betas = (beta1, beta2)
        self.epsilon = epsilon
        raise_any(
            [
                *positive_problems(learning_rate=learning_rate, epsilon=epsilon),
                *number_problems("0 or more", lambda value: 0 <= value < math.inf, weight_decay=weight_decay),
                *positive_problems(
                    "above 0, or null for no clipping", grad_clip=1.0 if grad_clip is None else grad_clip
                ),
                *choice_problems(GRAD_CLIP_TYPES, grad_clip_type=grad_clip_type),
                *number_problems(
                    "0 or more, below 1", lambda value: 0 <= value < 1, beta1=beta1, beta2=beta2
                ),
            ]
        )
        rule = apply_decay_param_fun
        try:
            self._rule: DecayRule | None = imported("decay rule", rule) if isinstance(rule, str) else rule
        except PalmError as error:
            raise ConfigError(f"apply_decay_param_fun: {error}") from None
        self.take(**own)

    def take(self) -> None:
        """Take the settings of one optimizer alone; they join those above in its constructor."""

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Return whether weight decay applies; without a rule, to all but biases and layer norms."""
        return parameter.ndim > 1 if self._rule is None else bool(self._rule(name))

    def groups(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Group]:
        """The parameters that decay, and those that do not; a group without any is left out."""
        named = list(named_parameters)
        decaying = [pair for pair in named if self.decays(*pair)]
        spared = [pair for pair in named if not self.decays(*pair)]
        groups = [
            {"params": decaying, "weight_decay": self.weight_decay},
            {"params": spared, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]


class LightOptimizer(torch.optim.Optimizer):
    """A torch optimizer that works without the compiler, whose import takes a second.

    `torch.optim` keeps it from tracing these methods, and imports it to do so.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class FusedAdamW(LightOptimizer, torch.optim.AdamW):
    """Torch's own, in its fused form."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class MomentRule(LightOptimizer):
    """A torch optimizer whose steps are made of both means and of the number of steps of each parameter.

    Args:
        groups: parameters, with settings of their own where they have any.
        settings: the others', among them `lr`, `betas` and `eps`.
    """

    def __init__(self, groups: Iterable[Group], settings: dict[str, Any]) -> None:
        super().__init__(groups, settings)
        # While a device decides about steps, the host does not know of the last two whether they were made.
        self._counted: deque[list[Tensor]] = deque(maxlen=2)
        keep_moments_normal(self)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Move every parameter that has a gradient; with `found_inf`, only where that is 0 on the device."""
        self._counted.append([])
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        # A tensor, as torch's own optimizers keep it: checkpoints hold tensors alone.
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"] = torch.zeros_like(parameter)
                        state["exp_avg_sq"] = torch.zeros_like(parameter)
                    state["step"] += 1
                    self._counted[-1].append(state["step"])
                    by_step.setdefault(int(state["step"]), []).append(parameter)
            # The bias correction follows a parameter's own steps, of which heads that rested have had fewer:
            # the kernel is called once for every number of steps.
            for step, parameters in by_step.items():
                self.move(group, parameters, step)

    def forget(self, steps: int) -> None:
        """Take back the counting of so many of the last steps, at most two, which the device refused."""
        for _ in range(steps):
            for count in self._counted.pop():
                count -= 1

    @property
    def refuses(self) -> Tensor | None:
        """The scalar on the device that is 1 where it refuses the step; None where the host has decided."""
        return getattr(self, "found_inf", None)

    @abstractmethod
    def move(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """Update some parameters of a group, in place; they have gradients, and had `step` with this one."""

    def take_adam_step(
        self,
        targets: list[Tensor],
        parameters: list[Tensor],
        step: int,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        """One step of AdamW, by torch's fused kernel, with the gradients and moments of `parameters`.

        An operation at a time over all tensors took four to seven times as long on a CPU.

        Args:
            targets: what is moved: `parameters` themselves, or tensors of their shapes.
            parameters: their moments take the gradient in.
            step: which step of theirs it is, from 1.
            lr, betas, eps, weight_decay: as in `torch.optim.AdamW`.
        """
        states = [self.state[parameter] for parameter in parameters]
        # The kernel does not communicate: each rank moves what it has.
        mine = list(map(local_shard, targets))
        gradients = [local_shard(each.grad) for each in parameters if each.grad is not None]
        means = [local_shard(state["exp_avg"]) for state in states]
        squares = [local_shard(state["exp_avg_sq"]) for state in states]
        # One scalar for all of the call: they have had equally many steps.
        here = [torch.full((), float(step), device=mine[0].device)] * len(means)
        options: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps}
        options |= {"weight_decay": weight_decay, "amsgrad": False, "maximize": False}
        torch._fused_adamw_(mine, gradients, means, squares, [], here, **options, found_inf=self.refuses)


class EpsilonHatRule(MomentRule):
    """AdamW with epsilon added before the bias correction: PaddlePALM's update, and Paddle's."""

    def move(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """One step: the decay of the values before it, then Adam's."""
        beta1, beta2 = group["betas"]
        root = (1 - beta2**step) ** 0.5
        decay = self.decay(group, root / (1 - beta1**step))
        # It is AdamW's with another epsilon: there it is added to √v̂ = √v / root.
        options = {"lr": group["lr"], "betas": group["betas"], "eps": group["eps"] / root}
        self.take_adam_step(parameters, parameters, step, **options, weight_decay=decay)

    def decay(self, group: Group, corrected: float) -> float:  # noqa: ARG002
        """Share of a parameter that a step takes away, per unit of rate.

        Args:
            group: of the parameters.
            corrected: what the bias correction makes of a rate of 1.
        """
        return float(group["weight_decay"])


NEGLIGIBLE = {"exp_avg": 1e-28, "exp_avg_sq": 1e-35}
"""Below these, a running mean becomes 0: beside an epsilon of 1e-8 it moves no parameter."""

PERIOD = 50
"""Steps between two looks; 0.9 ** PERIOD leaves a mean, times the rate, a normal float32 number."""


def keep_moments_normal(optimizer: torch.optim.Optimizer) -> None:
    """Let `optimizer` drop negligible moments, every `PERIOD` steps of a parameter.

    The mean gradient of an embedding row whose word is not seen any more shrinks by a tenth a step;
    after some 750 steps it is a denormal number, on which a CPU (not a GPU) is slow: the optimizer's step
    was measured to take 8 to 11 times as long. To let the processor round these to zero,
    `torch.set_flush_denormal`, would change the arithmetic of the user's whole process, and does not
    reach threads that are running already.
    """

    def shrink(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for state in optimizer.state.values():
            if state["exp_avg"].device.type == "cpu" and state["step"].item() % PERIOD == 0:
                for name, least in NEGLIGIBLE.items():
                    torch.hardshrink(state[name], least, out=state[name])

    optimizer.register_step_post_hook(shrink)
