"""A trained task on an encoder of the `transformers` library as the library's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.transformers import Transformers
from palm.backbone.transformers_tasks import task_model
from palm.core.errors import PalmError
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.model_card import label_names
from palm.engine.inference.onnx.graph import made_up_batch
from palm.engine.training.model import outputs_of
from palm.pretrained.heads import HeadLayout, library_names
from palm.pretrained.library import ABOVE, quiet_library

TOLERANCE = 1e-4
"""The largest difference between palm's outputs and the library's."""


def library_model(model: InferenceModel, head: HeadLayout) -> nn.Module:
    """Build the library's model of a task, with the task's weights.

    Raises:
        PalmError: the library has none that computes the same; says why.
    """
    backbone = model.backbone
    assert isinstance(backbone, Transformers)
    built = task_model(backbone.config, head.model, **_settings(model))
    names = library_names(backbone.config, head)
    if built is None or names is None:
        raise PalmError(
            f"transformers has no {head.model[3:]} of {backbone.config.model_type}; export it to ONNX"
        )
    built.eval()
    prefix = f"{built.base_model_prefix}."
    weights = {prefix + name: value for name, value in backbone.model.state_dict().items()}
    if head.reads_pooler:
        weights |= {n.removeprefix(ABOVE): v for n, v in backbone.state_dict().items() if n.startswith(ABOVE)}
    own = model.head.state_dict()
    weights |= {theirs: own[ours] for ours, theirs in names.items()}
    lacking = _lacking(built, weights)
    title = type(built).__name__
    if lacking:
        further = ", ".join(lacking)
        raise PalmError(f"{model.task} cannot become a {title}, which has {further}, too; export it to ONNX")
    if not (apart := _difference(model, backbone, built)) <= TOLERANCE:
        raise PalmError(f"{model.task} cannot become a {title}, whose outputs differ by {apart:.1e}")
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


def _settings(model: InferenceModel) -> dict[str, Any]:
    """The settings of the library's configuration that come from the head."""
    settings: dict[str, Any] = {"_attn_implementation": "eager", "architectures": None}
    if labels := label_names(model.reader, model.head):
        settings |= {"num_labels": len(labels), "id2label": dict(enumerate(labels))}
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    if "values" in model.head.outputs_attr:
        settings["problem_type"] = "regression"
    return settings


@torch.no_grad()
def _difference(model: InferenceModel, backbone: Transformers, built: nn.Module) -> float:
    """The largest difference at real tokens, on made-up ones."""
    batch = made_up_batch(model.reader, 8)
    mask = batch["input_mask"]
    pad = backbone.config.pad_token_id or 0
    ids = batch["token_ids"]
    batch["token_ids"] = ids.where(ids != pad, pad + 1).masked_fill(~mask, pad)
    expected = outputs_of(backbone.eval(), model.head.eval(), batch)
    given = {"input_ids": batch["token_ids"], "attention_mask": mask.long()}
    if "segment_ids" in backbone.inputs_attr:
        given["token_type_ids"] = batch["segment_ids"]
    masks = batch["mask_pos"] if "mask_counts" in expected else None
    computed = _under_our_names(built(**given), masks)
    apart = 0.0
    for name in computed.keys() & expected.keys():
        ours = expected[name]
        difference = (ours - computed[name].view(ours.shape)).abs()
        apart = max(apart, float((difference[mask] if ours.shape[:2] == mask.shape else difference).max()))
    return apart


def _under_our_names(computed: Any, masks: Tensor | None) -> dict[str, Tensor]:
    """The library's outputs under the names that palm's heads give theirs; logits of masked words alone."""
    if "logits" not in computed:
        return {name: computed[name] for name in ("start_logits", "end_logits")}
    logits = computed.logits if masks is None else computed.logits.flatten(0, 1)[masks]
    probs = logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)
    return {"logits": logits, "values": logits, "probs": probs}
