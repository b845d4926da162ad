"""Comparison of an encoder's settings with those that its weights were trained with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import nn

from palm.backbone import BACKBONES, Backbone
from palm.backbone.transformers import Transformers
from palm.core.errors import ConfigError, StorageError
from palm.pretrained.configs import check_computation, described, find_config, read_config
from palm.pretrained.library import disagreements
from palm.pretrained.names import Renamed

COMPUTED = ("num_attention_heads", "hidden_act")
"""Settings that change what weights compute and none of their shapes."""

ALIKE = ({"bert", "ernie"},)
"""Encoders that compute the same with the same weights; task embeddings that are missing add nothing."""


def check_agreement(backbone: nn.Module, given: Renamed, path: Path) -> None:
    """Compare an encoder with what the JSON file beside its weights, if there is one, says of theirs.

    Args:
        backbone: an encoder; another module is not compared.
        given: the weights.
        path: where they are.

    Raises:
        StorageError: weights of another family, or that were trained with other settings; with each.
    """
    file = find_config(path)
    if file is None or not isinstance(backbone, Backbone):
        return
    if isinstance(backbone, Transformers):
        problems = disagreements(backbone, file)
    else:
        check_computation(read_config(file), file)
        problems = _disagreements(backbone, file, given)
    if lines := list(problems):
        title = f"the weights of {path} are not those of this encoder, says {file}:"
        raise StorageError("\n".join([title, *lines]))


def _disagreements(backbone: Backbone, file: Path, given: Renamed) -> Iterator[str]:
    try:
        name, settings = described(file, given)
    except (ConfigError, StorageError):  # it says too little to compare
        return
    ours = BACKBONES.name_of(type(backbone))
    if ours in BACKBONES and ours != name and {ours, name} not in ALIKE:
        yield f"  backbone: {name} there, {ours} here; set backbone: {name}, or auto"
    for setting in COMPUTED:
        theirs = settings.get(setting)
        own = backbone.settings.get(setting)
        if theirs is not None and own is not None and own != theirs:
            yield f"  {setting}: {theirs!r} there, {own!r} here; set {setting}: {theirs}"
