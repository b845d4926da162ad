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

    Args:
        heads: of the tasks.
        backbone: whose weights lie beside the head's.
        config: the content of the directory's `config.json`; its `architectures` name the head.
        weights: all tensors of the directory, under its own names.
    """
    written = str(next(iter(config.get("architectures") or ()), ""))
    for task, head, labels in heads:
        layout = HEAD_LAYOUTS.get(HEADS.name_of(type(head)))
        if layout is None or not written.endswith(layout.model):
            continue
        found = _found(head, layout, backbone, weights)
        if not found:
            reason = f"the {written} has other layers or sizes"
        elif not _has_labels(config, labels):
            reason = f"the {written} has other labels"
        else:
            with torch.no_grad():
                for name, parameter in head.named_parameters():
                    parameter.copy_(found.get(name, torch.zeros_like(parameter)))
            logger.info("%s: starts from the head of the %s", task, written)
            continue
        logger.info("%s: %s, so its head starts afresh", task, reason)


def _found(
    head: Head, layout: HeadLayout, backbone: Backbone, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Find the tensors of a head; empty where one lacks, but a bias that its family does not have."""
    own = dict(head.named_parameters())
    if isinstance(backbone, Transformers):
        theirs = library_names(backbone.config, layout)
        names = {} if theirs is None or theirs[1] else theirs[0]
    else:
        names = renamed(own, layout.names_on(BACKBONES.name_of(type(backbone))))
    tensors = {ours: _tensor(weights, theirs) for ours, theirs in names.items() if ours in own}
    found = {name: value for name, value in tensors.items() if value is not None}
    fits = len(found) == len(tensors) and all(own[name].shape == found[name].shape for name in found)
    complete = all(name in found or name.endswith(".bias") for name in own)
    return found if fits and complete else {}


def _tensor(weights: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Find a tensor under its name; a last layer's bias may be that of the module around, tied to it."""
    return weights.get(name, weights.get(re.sub(r"\.\w+\.bias$", ".bias", name)))


def _has_labels(config: Mapping[str, Any], labels: Sequence[str]) -> bool:
    """Check that outputs stand for the same labels, as far as both sides name them."""
    named = config.get("id2label") or {}
    theirs = [str(label) for _, label in sorted(named.items(), key=lambda item: int(item[0]))]
    nameless = all(re.fullmatch(r"LABEL_\d+", label) for label in theirs)
    return nameless or len(labels) < 2 or all(label.isdecimal() for label in labels) or theirs == list(labels)
