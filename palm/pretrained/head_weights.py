"""The heads of a directory of pretrained weights, for the tasks that have the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palm.backbone import BACKBONES, Backbone
from palm.backbone.transformers import Transformers
from palm.core.logging import logger
from palm.paradigm import HEADS, Head
from palm.pretrained.heads import HEAD_LAYOUTS, HeadLayout, library_names, renamed

NamedHead = tuple[str, Head, Sequence[str]]
"""A task, its head, and the labels of its outputs; empty where these are no labels or have no names."""


def fill_heads(
    heads: Iterable[NamedHead], backbone: Backbone, config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Start heads from the one beside an encoder's weights; others stay as they are, and the log says why.

    `config` is the `config.json` there, whose `architectures` name the head; `weights` are all tensors.
    """
    written = str(next(iter(config.get("architectures") or ()), ""))
    for task, head, labels in heads:
        layout = HEAD_LAYOUTS.get(HEADS.name_of(type(head)))
        if layout is None or not written.endswith(layout.model):
            continue
        found = _found(head, layout, backbone, weights)
        if not found or not _has_labels(config, labels):
            what = "labels" if found else "layers or sizes"
            logger.info("%s: the %s has other %s, so its head starts afresh", task, written, what)
            continue
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                parameter.copy_(found.get(name, torch.zeros_like(parameter)))
        logger.info("%s: starts from the head of the %s", task, written)


def _found(
    head: Head, layout: HeadLayout, backbone: Backbone, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Find the tensors of a head; empty where one lacks, but a bias that its family does not have."""
    own = dict(head.named_parameters())
    if isinstance(backbone, Transformers):
        names = library_names(backbone.config, layout) or {}
    else:
        names = renamed(own, layout.names_on(BACKBONES.name_of(type(backbone))))
    tensors = {ours: _tensor(weights, theirs) for ours, theirs in names.items() if ours in own}
    found = {n: value for n, value in tensors.items() if value is not None and value.shape == own[n].shape}
    complete = all(name in found or (name.endswith("bias") and name not in names) for name in own)
    return found if complete else {}


def _tensor(weights: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Find a tensor under its name; a last layer's bias may be that of the module around, tied to it."""
    return weights.get(name, weights.get(re.sub(r"\.\w+\.bias$", ".bias", name)))


def _has_labels(config: Mapping[str, Any], labels: Sequence[str]) -> bool:
    """Check that outputs stand for the same labels, as far as both sides name them."""
    named = config.get("id2label") or {}
    theirs = [str(label) for _, label in sorted(named.items(), key=lambda item: int(item[0]))]
    nameless = all(re.fullmatch(r"LABEL_\d+", label) for label in theirs)
    return nameless or len(labels) < 2 or all(label.isdecimal() for label in labels) or theirs == list(labels)
