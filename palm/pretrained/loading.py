"""Loading of pretrained weights into a backbone, with a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from palm.backbone import BACKBONES, Backbone
from palm.backbone.token_encoder import TokenEncoder
from palm.backbone.transformers import Transformers
from palm.core.differences import shortened
from palm.core.errors import ConfigError, StorageError
from palm.core.io import wrap_read_errors
from palm.core.logging import logger
from palm.pretrained.configs import check_computation, described, find_config, read_config
from palm.pretrained.directory import directory_pooling
from palm.pretrained.files import read_weights
from palm.pretrained.heads import NamedHead, fill_heads
from palm.pretrained.library import computed_settings, renamed_for
from palm.pretrained.names import Renamed, to_ours

MAY_LACK = {
    "pooler.weight": "freshly initialized",
    "pooler.bias": "freshly initialized",
    "embeddings.task.weight": "set to zero, which adds nothing",
}
"""Parameters that some published weights lack -> their initialization in this case."""

MAX_NAMED = 6
"""Number of tensors that a message lists."""

COMPUTED = ("num_attention_heads", "hidden_act")
"""Settings that affect the computation but no shapes."""

EQUIVALENT = ({"bert", "ernie"},)
"""Encoders that compute the same with the same weights; missing task embeddings add nothing."""


def may_lack(name: str) -> str | None:
    """Describe the initialization of a parameter that weights may lack; None if it is required."""
    return MAY_LACK.get("pooler.weight" if name.startswith(("model.pooler.", "sentence.")) else name)


@dataclass(frozen=True)
class Report:
    """The result of loading a weights file into a backbone.

    Args:
        path: source of the weights.
        loaded: the backbone's parameters that were loaded.
        missing: the backbone's optional parameters that the file lacks.
        left_out: the file's tensors that are not part of an encoder: heads and constants.
        unused: all other tensors of the file.
    """

    path: Path
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing)
        lines = [f"{len(self.loaded)} of the backbone's {total} parameters loaded from {self.path}"]
        lines += [f"  missing: {name} ({may_lack(name)})" for name in self.missing]
        lines += [f"  left out: {_listed(self.left_out)}"] if self.left_out else []
        lines += [f"  unused: {_listed(self.unused)}"] if self.unused else []
        return "\n".join(lines)


def load_pretrain(backbone: nn.Module, path: str | Path, heads: Iterable[NamedHead] = ()) -> Report:
    """Load pretrained weights into a backbone.

    Args:
        backbone: a palm backbone; it is not changed if an error is raised.
        path: a path that `read_weights` accepts.
        heads: heads of tasks, which are initialized from the head in the file if it is the same.

    Returns:
        The report, which is also logged; as a warning if tensors are missing or unused.

    Raises:
        StorageError: if no weights are found, or if parameters are missing or have another shape, or if the
            JSON file beside the weights describes another encoder.
    """
    path = Path(path)
    with wrap_read_errors(path):
        given = to_ours(read_weights(path))
    file = find_config(path)
    if file is None or not isinstance(backbone, Backbone):
        return fill_backbone(backbone, given, path)
    if lines := list(_disagreements(backbone, file, given)):
        title = f"the weights of {path} do not belong to this encoder, according to {file}:"
        raise StorageError("\n  ".join([title, *lines]))
    if isinstance(backbone, TokenEncoder) and backbone.settings["pooling"] == "model":
        backbone.set_pooling(directory_pooling(path))
    report = fill_backbone(backbone, given, path)
    fill_heads(heads, backbone, read_config(file), given.original)
    return report


def fill_backbone(backbone: nn.Module, given: Renamed, path: Path) -> Report:
    """Load weights that were already read; see `load_pretrain`."""
    parameters = backbone.state_dict()
    if isinstance(backbone, Transformers):
        given = renamed_for(backbone, given)
    if problems := list(_problems(parameters, given)):
        lines = shortened(problems, MAX_NAMED)
        raise StorageError("\n  ".join([f"the weights of {path} do not fit the backbone:", *lines]))
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name in given.weights:
                parameter.copy_(given.weights[name])
            elif name == "embeddings.task.weight":
                parameter.zero_()
    surplus = [name for name in given.weights if name not in parameters]
    heads = [name for name in surplus if name in MAY_LACK]  # a pooler, if the pooling is not cls
    report = Report(
        path,
        loaded=tuple(name for name in parameters if name in given.weights),
        missing=tuple(name for name in parameters if name not in given.weights),
        left_out=(*given.left_out, *heads),
        unused=(*given.unused, *(name for name in surplus if name not in heads)),
    )
    (logger.warning if report.missing or report.unused else logger.info)("%s", report)
    return report


def _problems(parameters: Mapping[str, Tensor], given: Renamed) -> Iterator[str]:
    """Yield the problems of a file: tensors that are missing or have the wrong shape, type or values."""
    missing = [name for name in parameters if name not in given.weights and not may_lack(name)]
    if missing:
        yield f"missing, {len(missing)} of {len(parameters)}: {_listed(missing)}"
        if others := [*given.unused, *given.left_out]:
            yield f"in the file but unknown to the backbone: {_listed(others)}"
    found = {name: given.weights[name] for name in parameters if name in given.weights}
    for name, value in found.items():
        if value.shape != parameters[name].shape:
            yield f"{name}: {list(value.shape)} in the file, {list(parameters[name].shape)} in the backbone"
    if integers := [name for name, value in found.items() if not value.is_floating_point()]:
        yield f"integers, as in quantized weights, {len(integers)} of {len(parameters)}: {_listed(integers)}"
    # Only tensors of the right shape, because a file may claim far larger ones than it has.
    fitting = {name: value for name, value in found.items() if value.shape == parameters[name].shape}
    if invalid := [name for name, value in fitting.items() if not value.isfinite().all()]:
        yield f"infinite or NaN values in {len(invalid)}: {_listed(invalid)}; copy the file again"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shortened(names, MAX_NAMED))


def _disagreements(backbone: Backbone, file: Path, given: Renamed) -> Iterator[str]:
    """Compare an encoder with the JSON file beside the weights: its family, and what it computes."""
    if isinstance(backbone, Transformers):
        ours, theirs = computed_settings(backbone, file)
    else:
        check_computation(read_config(file), file)
        try:
            name, theirs = described(file, given)
        except (ConfigError, StorageError):  # not enough information to compare
            return
        own = BACKBONES.name_of(type(backbone))
        if own in BACKBONES and own != name and {own, name} not in EQUIVALENT:
            yield f"backbone: {name} in the file, {own} in the run; set backbone: {name}, or auto"
        ours = {name: backbone.settings.get(name) for name in COMPUTED if theirs.get(name) is not None}
        ours = {name: value for name, value in ours.items() if value is not None}
    for setting, value in ours.items():
        if theirs.get(setting) != value:
            other = theirs.get(setting)
            yield f"{setting}: {other!r} in the file, {value!r} in the run; set {setting}: {other}"
