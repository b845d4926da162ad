"""Optimizers: settings that build a torch optimizer over named parameters, and the update rules."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from palm.core.component import (
    BelowOne,
    Component,
    NonNegative,
    PositiveFloat,
    Registry,
    imported,
    positive_problems,
    share_problems,
)
from palm.core.errors import ConfigError, PalmError, about

BACKBONE = "backbone."
"""Prefix of the names of the encoder's parameters."""

FROZEN = "above 0; use freeze for parameters that should not be trained"

Clip = Annotated[float, partial(positive_problems, "above 0, or null for no clipping")]


@dataclass(eq=False, repr=False)
class ParameterGroups(Component):
    """Learning rates for parts of the model, and frozen parts; the schedule multiplies all rates.

    Args:
        backbone_learning_rate: learning rate of the encoder; `learning_rate` by default.
        freeze: part of the encoder that is not trained: embeddings, backbone (all of it), or a number n for
            the embeddings and the lowest n layers.

    Raises:
        ConfigError: if values are out of range.
    """

    backbone_learning_rate: Annotated[float, partial(positive_problems, FROZEN)] | None = None
    freeze: Literal["embeddings", "backbone"] | int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.freeze, int) and not self.freeze >= 1:
            wrong = f" should be embeddings, backbone or a number of layers, not {self.freeze!r}"
            raise ConfigError(about("freeze", wrong))

    def frozen(self, names: Iterable[str], layers: Callable[[], LayerNames]) -> set[str]:
        """Return the names of the frozen parameters.

        Args:
            names: names of all parameters; the encoder's begin with `backbone.`.
            layers: function that returns the names by layer; called only if `freeze` needs them.

        Raises:
            ConfigError: if `freeze` is above the number of layers.
        """
        if self.freeze is None:
            return set()
        if self.freeze == "backbone":
            return {name for name in names if name.startswith(BACKBONE)}
        # Called only here, because a user's own encoder may not define its layers.
        stages = layers()
        count = 0 if self.freeze == "embeddings" else self.freeze
        assert isinstance(count, int)
        if count >= len(stages):
            raise ConfigError(about("freeze", f": there are {len(stages) - 1} layers, not {count}"))
        return {name for stage in stages[: count + 1] for name in stage}

    def apply(
        self,
        optimizer: torch.optim.Optimizer,
        trainable: Sequence[tuple[str, nn.Parameter]],
        learning_rate: float,
        head_rates: Mapping[str, float],
        factors: Mapping[str, float],
    ) -> None:
        """Split an optimizer's groups so that every parameter has its rate.

        A parameter to which the optimizer assigned a fraction of `learning_rate` gets that fraction of its
        own rate.

        Args:
            optimizer: optimizer of the parameters, before its first step.
            trainable: the parameters with their names; the encoder's begin with `backbone.`.
            learning_rate: the rate that the optimizer was built with.
            head_rates: name prefix of a head's parameters -> the head's rate.
            factors: parameter name -> factor of its rate.
        """
        names = {parameter: name for name, parameter in trainable}
        own = {BACKBONE: self.backbone_learning_rate or learning_rate, **head_rates}
        # Split instead of rebuilt, because groups hold settings that only their optimizer knows.
        groups = list(optimizer.param_groups)
        optimizer.param_groups.clear()
        for group in groups:
            by_rate: dict[float, list[int]] = {}
            for index, parameter in enumerate(group["params"]):
                name = names[parameter]
                base = next((own[prefix] for prefix in own if name.startswith(prefix)), learning_rate)
                # The optimizer's own factor also applies to rates other than the base rate.
                factor = group["lr"] / learning_rate * factors.get(name, 1.0)
                by_rate.setdefault(factor * base, []).append(index)
            lists = {name: group[name] for name in ("params", "param_names") if name in group}
            optimizer.param_groups += [
                {**group, **{name: [values[k] for k in chosen] for name, values in lists.items()}, "lr": rate}
                for rate, chosen in by_rate.items()
            ]


GradClipType = Literal["global_norm", "norm", "value"]

LayerNames = Sequence[Sequence[str]]
"""Parameter names: those of the embeddings, then those of each layer, from the lowest."""


class Optimizer(Component, ABC):
    """Settings of an optimizer; `build` creates the torch optimizer once there is a model.

    Attributes:
        learning_rate: base learning rate, multiplied by the schedule.
        grad_clip: limit to which the training loop clips gradients; None for no clipping.
        grad_clip_type: kind of clipping, see `clip`.
        running: the torch optimizer of the most recent run.
    """

    learning_rate: PositiveFloat
    grad_clip: Clip | None
    grad_clip_type: GradClipType = "global_norm"
    running: torch.optim.Optimizer | None = None

    def get_cur_learning_rate(self) -> float:
        """Return the highest rate of all groups in the last step; before the first, `learning_rate`."""
        if self.running is None:
            return self.learning_rate
        rate: float = max(group["lr"] for group in self.running.param_groups)
        return rate

    @abstractmethod
    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create the torch optimizer of these parameters.

        Parameter groups may have different rates; the schedule multiplies each of them.
        """

    def layer_factors(self, layers: Callable[[], LayerNames]) -> dict[str, float]:  # noqa: ARG002
        """Return the factors of the learning rates of parameters by name; by default none.

        Args:
            layers: function that returns the names by layer; called only if rates differ.
        """
        return {}


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer", Optimizer)


def clip(
    parameters: Iterable[nn.Parameter], limit: float | None, kind: GradClipType = "global_norm"
) -> Tensor:
    """Clip gradients that exceed `limit`, in place.

    `global_norm` scales all gradients by their common norm, `norm` each parameter's gradient by its own, and
    `value` clamps every element. Without a limit, the norm is only measured.

    Returns:
        The global norm before clipping, a scalar on the gradients' device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm(gradients)
    if limit is None:
        return norm
    if kind == "value":
        torch._foreach_clamp_max_(gradients, limit)
        torch._foreach_clamp_min_(gradients, -limit)
    elif kind == "norm":
        norms = torch.stack(torch._foreach_norm(gradients))
        torch._foreach_mul_(gradients, (limit / norms).clamp(max=1.0).unbind())
    elif norm.is_cuda or norm > limit:
        torch._foreach_mul_(gradients, (limit / norm).clamp(max=1.0))
    return norm


DecayRule = Callable[[str], bool]
"""Parameter name -> True if the parameter decays."""

Group = dict[str, Any]
"""A parameter group of a torch optimizer."""


@dataclass(eq=False, repr=False)
class MomentOptimizer(Optimizer):
    """Settings common to Adam and its variants.

    Args:
        learning_rate: base learning rate, multiplied by the schedule.
        weight_decay: fraction of a parameter, times the rate, that each step subtracts.
        grad_clip: limit to which gradients are clipped before the step; None for no clipping.
        grad_clip_type: `global_norm` scales all gradients together, `norm` each parameter's gradient by
            itself, `value` clamps every element.
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients.
        epsilon: added to the square root of the latter, against division by zero.
        apply_decay_param_fun: which parameters decay: a function from a parameter's name to true or false,
            or its dotted path; by default all except biases and layer norms.

    Attributes:
        rule: the class of the torch optimizer.

    Raises:
        ConfigError: if values are out of range.
    """

    learning_rate: PositiveFloat
    weight_decay: NonNegative = 0.0
    grad_clip: Clip | None = 1.0
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: PositiveFloat = 1e-8
    grad_clip_type: GradClipType = "global_norm"
    apply_decay_param_fun: DecayRule | str | None = None

    rule: ClassVar[type[MomentRule]]

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = self.apply_decay_param_fun
        try:
            self._rule: DecayRule | None = imported("decay rule", rule) if isinstance(rule, str) else rule
        except PalmError as error:
            raise ConfigError(about("apply_decay_param_fun", f": {error}")) from None

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Check whether a parameter decays; without a rule, all except biases and layer norms do."""
        return parameter.ndim > 1 if self._rule is None else bool(self._rule(name))

    @property
    def torch_settings(self) -> dict[str, Any]:
        """Settings of all groups, by their names in torch."""
        return {"lr": self.learning_rate, "betas": (self.beta1, self.beta2), "eps": self.epsilon}

    def build(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create an optimizer with two groups: parameters that decay, and the others."""
        named = list(named_parameters)
        groups = []
        for decays in (True, False):
            params = [pair for pair in named if self.decays(*pair) is decays]
            own = {"weight_decay": self.weight_decay if decays else 0.0, "decays": decays}
            groups += [{"params": params, **own}] if params else []
        return self.rule(groups, self.torch_settings)


NEGLIGIBLE = {"exp_avg": 1e-28, "exp_avg_sq": 1e-35}
"""Thresholds below which a running mean is set to 0; next to an epsilon of 1e-8 it has no effect."""

PERIOD = 50
"""Steps between two checks; after a decay of 0.9 ** PERIOD, mean times rate is still a normal float32."""


class MomentRule(torch.optim.Optimizer):
    """Base of torch optimizers that use both running means and a step count per parameter.

    Args:
        groups: parameter groups, with any settings of their own.
        settings: default settings of the groups, including `lr`, `betas` and `eps`.
    """

    # Without the decorators that exclude them from tracing: these import the compiler, which takes a second.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update every parameter that has a gradient, unless `found_inf` on the device is 1."""
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        # A tensor, as in torch's own optimizers: checkpoints hold only tensors.
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"] = torch.zeros_like(parameter)
                        state["exp_avg_sq"] = torch.zeros_like(parameter)
                    state["step"] += 1
                    by_step.setdefault(int(state["step"]), []).append(parameter)
            # The bias correction depends on a parameter's own step count, which is lower for heads that did
            # not run in every step; the kernel is called once for each count.
            for step, parameters in by_step.items():
                self.update(group, parameters, step)
                if step % PERIOD == 0 and not parameters[0].is_cuda:
                    self._flush_small_moments(parameters)

    def _flush_small_moments(self, parameters: Iterable[Tensor]) -> None:
        """Set negligible moments to 0.

        The mean gradient of an embedding row shrinks by a tenth per step while its word does not occur; after
        some 750 steps it is a denormal number, on which a CPU (not a GPU) is slow: optimizer steps were
        measured to take 8 to 11 times as long. `torch.set_flush_denormal` would change the arithmetic of the
        user's whole process, and does not affect threads that are already running.
        """
        for parameter in parameters:
            for name, threshold in NEGLIGIBLE.items():
                moment = self.state[parameter][name]
                torch.hardshrink(moment, threshold, out=moment)

    @property
    def skip_flag(self) -> Tensor | None:
        """Scalar on the device that is 1 if the step is to be skipped; None if the host decides."""
        return getattr(self, "found_inf", None)

    @abstractmethod
    def update(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """Update some parameters of a group, all with gradients, in place; this is their `step`-th step."""

    def fused_adam_step(
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
        """Perform one AdamW step with torch's fused kernel and the gradients and moments of `parameters`.

        Separate operations over all tensors took four to seven times as long on a CPU.

        Args:
            targets: the tensors to update: `parameters`, or tensors of the same shapes.
            parameters: source of the gradients; their moments are updated.
            step: their step count, including this step.
            lr, betas, eps, weight_decay: the arguments of `torch.optim.AdamW`.
        """
        states = [self.state[parameter] for parameter in parameters]
        gradients = [each.grad for each in parameters if each.grad is not None]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        # One scalar for all, because they have the same step count.
        steps = [torch.full((), float(step), device=targets[0].device)] * len(means)
        options: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps}
        options |= {"weight_decay": weight_decay, "amsgrad": False, "maximize": False}
        torch._fused_adamw_(
            targets, gradients, means, squares, [], steps, **options, found_inf=self.skip_flag
        )


class AdamRule(MomentRule):
    """AdamW.

    Args:
        groups: parameter groups.
        settings: default settings of the groups. With `epsilon_hat`, epsilon is added before the bias
            correction, as in PaddlePALM and Paddle. With `corrects_decay`, the weight decay is multiplied by
            the bias correction of the rate.
    """

    def __init__(self, groups: Iterable[Group], settings: dict[str, Any]) -> None:
        super().__init__(groups, {"epsilon_hat": False, "corrects_decay": False, **settings})

    def update(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """Perform one step: weight decay of the previous values, then Adam's update."""
        beta1, beta2 = group["betas"]
        root = (1 - beta2**step) ** 0.5
        decay = float(group["weight_decay"]) * (root / (1 - beta1**step) if group["corrects_decay"] else 1)
        # The kernel adds epsilon to √v̂ = √v / root.
        eps = group["eps"] / (root if group["epsilon_hat"] else 1)
        options = {"lr": group["lr"], "betas": group["betas"], "eps": eps}
        self.fused_adam_step(parameters, parameters, step, **options, weight_decay=decay)


@OPTIMIZERS.register("adam", "adamw")
@dataclass(eq=False, repr=False)
class AdamW(MomentOptimizer):
    """Adam with decoupled weight decay.

    One step with rate `lr`: `p ← p − lr·m̂/(√v̂ + epsilon) − lr·weight_decay·p`, with `p` on the right before
    the step. Biases and layer norms do not decay. A parameter without a gradient is not updated at all: no
    decay, no momentum. Other settings: see `MomentOptimizer`.

    Args:
        epsilon_hat: for adam, add epsilon before the bias correction, as PaddlePALM does, not after it:
            `lr·√(1 − beta2^t)/(1 − beta1^t)·m/(√v + epsilon)` in step t.

    Raises:
        ConfigError: if values are out of range.

    Source: Kingma and Ba, 2014, arXiv:1412.6980, with the "epsilon hat" of its section 2; Loshchilov and
    Hutter, 2017, arXiv:1711.05101.
    """

    rule = AdamRule

    _: KW_ONLY
    epsilon_hat: bool = False

    @property
    def torch_settings(self) -> dict[str, Any]:
        return {**super().torch_settings, "epsilon_hat": self.epsilon_hat}


RateRule = Callable[[float, int, int], float]
"""Decay rate, index of a layer, number of layers -> factor of the learning rate in this layer."""


def layerwise_lr_decay(decay_rate: float, layer: int, n_layers: int) -> float:
    """Compute the learning-rate factor of a layer: 1 for the top one, times `decay_rate` per layer below it.

    Args:
        decay_rate: α.
        layer: m: 0 for the embeddings, 1 for the lowest layer, `n_layers` for the top one.
        n_layers: n.

    Returns:
        `α ** (n − m)`.

    Source: Yang et al., 2019, arXiv:1906.08237, section A.4; PaddleNLP's documentation of AdamWDL.
    """
    return float(decay_rate ** (n_layers - layer))


@OPTIMIZERS.register("adamwdl")
@dataclass(eq=False, repr=False)
class AdamWDL(MomentOptimizer):
    """AdamW with dynamic learning rates: layer m of n has `learning_rate · layerwise_decay^(n − m)`.

    The embeddings, m = 0, have the lowest rate; the heads and all other parameters above the top layer have
    `learning_rate`. Step t of a parameter with rate `lr`: `p ← p − lr_t · (m/(√v + epsilon) +
    weight_decay·p)` with `lr_t = lr · √(1 − beta2^t) / (1 − beta1^t)`. Other
    settings: see `MomentOptimizer`.

    Args:
        layerwise_decay: for adamwdl, α, the ratio of each layer's rate to that of the layer above it; above
            0, at most 1; 1 for the same rate in all layers.
        set_param_lr_fun: for adamwdl, custom rule for the rates of layers: a function with the arguments of
            `palm.optimizer.layerwise_lr_decay`, or its dotted path.

    Raises:
        ConfigError: if values are out of range.

    Source: PaddleNLP's documentation of AdamWDL, with its defaults.
    """

    rule = AdamRule

    learning_rate: PositiveFloat = 1e-3
    weight_decay: NonNegative = 0.01
    grad_clip: Clip | None = None
    _: KW_ONLY
    layerwise_decay: Annotated[float, share_problems] = 1.0
    set_param_lr_fun: RateRule | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = layerwise_lr_decay if self.set_param_lr_fun is None else self.set_param_lr_fun
        self._rate_rule: RateRule = imported("rate rule", rule) if isinstance(rule, str) else rule

    @property
    def torch_settings(self) -> dict[str, Any]:
        # In the documented formula, weight decay has the corrected rate too.
        return {**super().torch_settings, "epsilon_hat": True, "corrects_decay": True}

    def layer_factors(self, layers: Callable[[], LayerNames]) -> dict[str, float]:
        if self.layerwise_decay == 1 and self.set_param_lr_fun is None:
            return {}
        # Rates follow the layers that the encoder defines, not name patterns; parameters outside all layers,
        # such as heads and pooler, have the full rate.
        stages = layers()
        return {
            name: self._rate_rule(self.layerwise_decay, number, len(stages) - 1)
            for number, names in enumerate(stages)
            for name in names
        }


class LambRule(MomentRule):
    """The update of `Lamb`; the parameters of a group that decays are scaled."""

    def update(self, group: Group, parameters: list[Tensor], step: int) -> None:
        """Perform one step of algorithm 2."""
        # One parameter at a time on a CPU, so that it stays in the cache.
        for some in [parameters] if parameters[0].is_cuda else ([parameter] for parameter in parameters):
            updates = [torch.zeros_like(parameter) for parameter in some]  # holds -u from here on
            self.fused_adam_step(updates, some, step, lr=1.0, betas=group["betas"], eps=group["eps"])
            torch._foreach_add_(updates, some, alpha=-group["weight_decay"])
            if group["decays"]:
                torch._foreach_mul_(updates, trust_ratios(some, updates))
            if self.skip_flag is not None:
                torch._foreach_mul_(updates, 1 - self.skip_flag)
            torch._foreach_add_(some, updates, alpha=group["lr"])


@OPTIMIZERS.register("lamb")
@dataclass(eq=False, repr=False)
class Lamb(MomentOptimizer):
    """Layer-wise adaptive moments: `p ← p − lr · ‖p‖/‖u‖ · u` with `u = m̂/(√v̂ + epsilon) + weight_decay·p`.

    Parameters that do not decay (biases and layer norms, unless `apply_decay_param_fun` says otherwise) are
    not scaled either; they get Adam's update. A parameter without a gradient is not updated. Other settings:
    see `MomentOptimizer`.

    Raises:
        ConfigError: if values are out of range.

    Source: You et al., 2019, arXiv:1904.00962, algorithm 2, with phi the identity.
    """

    rule = LambRule

    weight_decay: NonNegative = 0.01
    epsilon: PositiveFloat = 1e-6


def trust_ratios(weights: list[Tensor], updates: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the factors by which LAMB scales the updates of parameters.

    Args:
        weights: the parameters, of any shape.
        updates: Adam step plus decay of each parameter, before the learning rate, same shapes.

    Returns:
        Scalars, norm(weight) / norm(update) each; 1 if either norm is zero, because otherwise a parameter
        initialized to zero would never change.

    Source: You et al., 2019, arXiv:1904.00962, algorithm 2, with phi the identity.
    """
    sizes, steps = torch.stack(torch._foreach_norm([*weights, *updates])).chunk(2)
    return torch.where((sizes > 0) & (steps > 0), sizes / steps, torch.ones_like(sizes)).unbind()
