"""A trained task on an encoder of the `transformers` library as the library's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from palm.backbone.transformers import Transformers
from palm.backbone.transformers_tasks import task_model
from palm.core.errors import PalmError
from palm.engine.inference.inference import InferenceModel
from palm.export.description import label_settings
from palm.pretrained.heads import HeadLayout, library_names
from palm.pretrained.library import ABOVE, quiet_library


def library_model(model: InferenceModel, head: HeadLayout) -> Any:
    """Build the library's model of a task, with the task's weights.

    Raises:
        PalmError: the library has none that computes the same; says why.
    """
    backbone = model.backbone
    assert isinstance(backbone, Transformers)
    settings = {"_attn_implementation": "eager", "architectures": None, **label_settings(model)}
    built = task_model(backbone.config, head.model, **settings)
    names = library_names(backbone.config, head)
    if built is None or names is None:
        raise PalmError(
            f"transformers has no {head.model[3:]} of {backbone.config.model_type} that computes the same; "
            "export it to ONNX"
        )
    prefix = f"{built.base_model_prefix}."
    weights = {prefix + name: value for name, value in backbone.model.state_dict().items()}
    if head.reads_pooler:
        weights |= {n.removeprefix(ABOVE): v for n, v in backbone.state_dict().items() if n.startswith(ABOVE)}
    own = model.head.library_parameters()
    weights |= {theirs: own[ours] for ours, theirs in names.items() if ours in own}
    differing = _lacking(built, weights)
    differing += [f"no {name}" for name, value in own.items() if name not in names and value.any()]
    if differing:
        others = ", ".join(differing)
        raise PalmError(f"{type(built).__name__} has {others}, other than {model.task}; export it to ONNX")
    return built


def save_library_model(built: Any, folder: Path) -> None:
    """Write a model as the library does, without its bars."""
    with quiet_library():
        built.save_pretrained(folder)


def _lacking(built: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """Load weights, and name what they lack: no tied tensors, and no pooler that only other heads read."""
    missing = built.load_state_dict(weights, strict=False).missing_keys
    state = built.state_dict()
    loaded = {state[name].data_ptr() for name in weights if name in state}
    pooler = f"{built.base_model_prefix}.pooler."
    return [name for name in missing if state[name].data_ptr() not in loaded and not name.startswith(pooler)]
