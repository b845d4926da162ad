"""One shared backbone and the heads of all tasks on it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from palm.backbone.base import Backbone
from palm.core.contract import Tensors, as_declared
from palm.core.errors import WiringError
from palm.core.precision import Precision, computing
from palm.engine.task import Task
from palm.paradigm.base import Head


class MultiTaskModel(nn.Module):
    """What is trained: only the drawn task's head runs in a step.

    Args:
        backbone: the shared encoder.
        tasks: their heads are registered once each, under the first task that has them.
        precision: what forward and backward compute with; parameters and losses are float32.
    """

    def __init__(self, backbone: Backbone, tasks: Sequence[Task], precision: Precision = "fp32") -> None:
        super().__init__()
        self.backbone, self.precision = backbone, precision
        self.heads = nn.ModuleDict()
        self._owners: dict[str, str] = {}
        keys: dict[Head, str] = {}
        for task in tasks:
            # "@": a task may be called `train` or `type`, which a module attribute may not.
            # And one with a dot, which separates names there, is written as in an address.
            place = task.name.replace("%", "%25").replace(".", "%2E")
            key = keys.setdefault(task.head, f"@{place}")
            self.heads[key] = task.head
            self._owners[task.name] = key

    @property
    def head_places(self) -> dict[str, str]:
        """Task -> the place of its head in `state_dict`; equal where tasks share one."""
        return {task: f"heads.{key}" for task, key in self._owners.items()}

    def parameter_layers(self) -> list[list[str]]:
        """The names of the parameters of the embeddings, then of each layer of the encoder.

        Raises:
            ConfigError: the encoder does not tell.
        """
        return [[f"backbone.{name}" for name in names] for names in self.backbone.parameter_layers()]

    def head(self, task: str) -> Head:
        """The head of a task."""
        head = self.heads[self._owners[task]]
        assert isinstance(head, Head)
        return head

    def forward(self, task: str, batch: Tensors) -> Tensor:
        """The mean loss of one task on its batch, a scalar; predictions are made of `outputs_of`."""
        head = self.head(task)
        return head.loss(outputs_of(self.backbone, head, batch, self.precision), batch)

    def num_terms(self, task: str, batch: Tensors) -> int:
        """Over how many equal terms that loss is the mean."""
        return self.head(task).num_terms(batch)


def share_parameters(source: nn.Module, target: nn.Module) -> None:
    """Make the parameters and buffers of `target` those of `source`, the same tensors, for good.

    Raises:
        WiringError: they differ in names or shapes.
    """
    theirs, ours = (
        {name: tuple(value.shape) for name, value in module.state_dict().items()}
        for module in (source, target)
    )
    if strange := sorted(name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)):
        raise WiringError(
            f"{type(target).__name__} for prediction is not built like the trained {type(source).__name__}; "
            f"they differ in {', '.join(strange[:6])}"
        )
    for module, trained in zip(target.modules(), source.modules(), strict=True):
        module._parameters.update(trained._parameters)
        module._buffers.update(trained._buffers)


def outputs_of(backbone: Backbone, head: Head, batch: Tensors, precision: Precision = "fp32") -> Tensors:
    """The batch through the backbone and one head; only what that layer reads is computed.

    Args:
        backbone: computes in `precision`.
        paradigm: reads its features as it declares them, float32 in any precision.
        batch: on the device of both.
        precision: fp32 or bf16.

    Returns:
        The head's outputs.
    """
    device = next(iter(batch.values())).device
    declared = {name: spec.dtype for name, spec in head.inputs_attr.items() if name in backbone.outputs_attr}
    with computing(precision, device):
        features = backbone(as_declared(batch, backbone.inputs_attr), list(declared))
    features = {**batch, **{name: features[name].to(dtype) for name, dtype in declared.items()}}
    with computing(precision if head.computes_in_bf16 else "fp32", device):
        taken = {name: features[name] for name in head.inputs_attr}
        outputs: Tensors = head(as_declared(taken, head.inputs_attr))
    return outputs
