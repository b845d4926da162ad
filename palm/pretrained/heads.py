"""Conversion of heads to and from Hugging Face: model classes and names of parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palm.backbone import BACKBONES, Backbone
from palm.backbone.transformers import Transformers
from palm.backbone.transformers_tasks import head_layers
from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.paradigm import HEADS, Head

NamedHead = tuple[str, Head, Sequence[str]]
"""A task, its head, and the names of its labels; empty if it has none."""


@dataclass(frozen=True)
class HeadLayout:
    """A head of `transformers`.

    Args:
        model: suffix of its class name, `For…`.
        ours: our modules and parameters.
        names: our name of the encoder -> their names in the same order; `""` for all other encoders.
        reads_pooler: True if the encoder keeps its pooler.
        fixed: our name of the encoder -> settings of the head that do not depend on the encoder's.
    """

    model: str
    ours: str
    names: Mapping[str, str]
    reads_pooler: bool = False
    fixed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def names_on(self, backbone: str) -> Mapping[str, str]:
        """Map our modules and parameters to their names with an encoder."""
        return dict(zip(self.ours.split(), self.names.get(backbone, self.names[""]).split(), strict=True))


_SENTENCE = HeadLayout(
    "ForSequenceClassification",
    "out",
    {"": "classifier", "roberta": "classifier.out_proj", "electra": "classifier.out_proj"},
    reads_pooler=True,
)

HEAD_LAYOUTS = {
    **dict.fromkeys(("cls", "match", "multi_label", "regression"), _SENTENCE),
    "multiple_choice": HeadLayout("ForMultipleChoice", "out", {"": "classifier"}, reads_pooler=True),
    "mrc": HeadLayout("ForQuestionAnswering", "out", {"": "qa_outputs"}),
    "seq_label": HeadLayout("ForTokenClassification", "out", {"": "classifier"}),
    "mlm": HeadLayout(
        "ForMaskedLM",
        "transform norm bias",
        {
            "": "cls.predictions.transform.dense cls.predictions.transform.LayerNorm cls.predictions.bias",
            "roberta": "lm_head.dense lm_head.layer_norm lm_head.bias",
            "distilbert": "vocab_transform vocab_layer_norm vocab_projector.bias",
            "electra": "generator_predictions.dense generator_predictions.LayerNorm generator_lm_head.bias",
        },
        fixed={
            "roberta": {"hidden_act": "gelu"},
            "distilbert": {"layer_norm_eps": 1e-12},
            "electra": {"hidden_act": "gelu"},
        },
    ),
}
"""Our name of the head -> its layout."""


PROBLEM_TYPES = {"multi_label": "multi_label_classification", "regression": "regression"}
"""Our name of a head -> its `problem_type` in `transformers`, if the labels do not determine it."""


def layout_of_head(head: Head) -> tuple[str, HeadLayout]:
    """Return our name of a head and its layout.

    Raises:
        PalmError: if `transformers` has no equivalent.
    """
    name = HEADS.name_of(type(head))
    if name not in HEAD_LAYOUTS:
        raise PalmError(f"Hugging Face has no model for {name!r}; supported are {', '.join(HEAD_LAYOUTS)}")
    return name, HEAD_LAYOUTS[name]


def renamed(names: Iterable[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Map our names of tensors to names with replaced modules; names without a module are replaced whole."""
    found = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        found[name] = f"{modules[module]}.{kind}" if module else modules[name]
    return found


def fill_heads(
    heads: Iterable[NamedHead], backbone: Backbone, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Initialize heads from the head beside an encoder's weights; otherwise the log says why not.

    `config` is the content of `config.json`, whose `architectures` name the head; `weights` are all tensors.
    """
    written = str(next(iter(config.get("architectures") or ()), ""))
    for task, head, labels in heads:
        layout = HEAD_LAYOUTS.get(HEADS.name_of(type(head)))
        if layout is None or not written.endswith(layout.model):
            continue
        found = _found(head, layout, backbone, weights)
        if not found or not _has_labels(config, labels):
            what = "labels" if found else "layers or sizes"
            logger.info("%s: the %s has other %s; the head is initialized randomly", task, written, what)
            continue
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                parameter.copy_(found.get(name, torch.zeros_like(parameter)))
        logger.info("%s: the head is initialized from the %s", task, written)


def _found(
    head: Head, layout: HeadLayout, backbone: Backbone, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Find the tensors of a head; empty if any is missing, except a bias that its family does not have."""
    own = dict(head.named_parameters())
    if isinstance(backbone, Transformers):
        layers = head_layers(backbone.config, layout.model)
        names = layers.names if layers else {}
    else:
        names = renamed(own, layout.names_on(BACKBONES.name_of(type(backbone))))
    tensors = {ours: _tensor(weights, theirs) for ours, theirs in names.items() if ours in own}
    found = {n: value for n, value in tensors.items() if value is not None and value.shape == own[n].shape}
    complete = all(name in found or (name.endswith("bias") and name not in names) for name in own)
    return found if complete else {}


def _tensor(weights: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Find a tensor by name; the bias of a last layer may be stored as that of the parent module."""
    return weights.get(name, weights.get(re.sub(r"\.\w+\.bias$", ".bias", name)))


def _has_labels(config: Mapping[str, Any], labels: Sequence[str]) -> bool:
    """Check that the labels are the same, if both sides name them."""
    named = config.get("id2label") or {}
    theirs = [str(label) for _, label in sorted(named.items(), key=lambda item: int(item[0]))]
    nameless = all(re.fullmatch(r"LABEL_\d+", label) for label in theirs)
    return nameless or len(labels) < 2 or all(label.isdecimal() for label in labels) or theirs == list(labels)
