"""A task's adapters and head in a small separate directory, so many tasks can share one base model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.backbone import Backbone
from palm.backbone.low_rank import LowRank
from palm.core.saved import tensor_digests
from palm.core.tensor_specs import Tensors
from palm.pretrained.loading import may_lack
from palm.pretrained.peft import write_adapters


@dataclass(frozen=True)
class Adapted:
    """The adapters of a task, and the encoder that they change.

    Args:
        adapters: the adapters of the task.
        shared: the encoder without adapters.
        base: a directory with the weights of that encoder, or the name of a model; None if there is neither.
    """

    adapters: LowRank
    shared: Backbone
    base: str | None

    def write(self, folder: Path) -> None:
        """Write the adapters in PEFT's format."""
        write_adapters(self.adapters, self.shared, folder, self.base)

    def extras(self, weights: Tensors) -> Tensors:
        """Return the weights in neither adapters nor base: the head, and parts that base models may lack."""
        own = {name for name in weights if may_lack(name.removeprefix("backbone."))}
        return {name: weights[name] for name in weights if name in own or name.startswith("paradigm.")}

    def facts(self) -> dict[str, Any]:
        """Describe the base, so it can be found and verified."""
        return {"base": {"path": self.base, "digests": tensor_digests(self.shared.state_dict())}}
