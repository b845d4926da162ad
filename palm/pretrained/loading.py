"""Find and load weights of other programs: into a backbone and heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone import BACKBONES, Backbone
from palm.backbone.base import TokenEncoder
from palm.backbone.transformers import Transformers, head_layers
from palm.config.files import names_model
from palm.core.cache import explain_limits
from palm.core.component import path_problems, raise_any
from palm.core.errors import ConfigError, PalmError, StorageError, shortened
from palm.core.io import is_sealed, verify, wrap_read_errors
from palm.core.logging import logger
from palm.paradigm import HEADS, Head
from palm.pretrained.directory import (
    check_computation,
    computable_pooling,
    described,
    directory_pooling,
    encoder_folder,
    encoder_weights,
    find_config,
    is_sentence_encoder,
    read_config,
    read_directory,
    settings_of_directory,
)
from palm.pretrained.families import computed_settings, renamed_for
from palm.pretrained.names import Renamed


def pretrained_directory(value: str | Path) -> Path:
    """Return the directory of a model: the given path, or the snapshot of a model on the Hub.

    A snapshot is downloaded if necessary; the last part of its path is the commit. PaddlePALM's `params`
    means the model's folder if only that exists, as in a download from the Hub.

    Raises:
        StorageError: if neither such a folder nor such a model exists.
    """
    raise_any(path_problems(path=value))
    path = Path(value)
    name = path.as_posix() if isinstance(value, Path) else value
    if names_model(name, Path()):
        from palm.pretrained.hub import fetch

        try:
            return encoder_folder(fetch(name))
        except StorageError as error:
            raise StorageError(f"no such folder: {path.absolute()}; model {error}") from error
    if path.name == "params" and not path.exists() and find_config(path):
        return path.parent
    if path.parent.name == "pretrain" and not path.exists():
        remedy = f"`palm download {path.name}` creates it in ./pretrain"
        raise StorageError(f"no such folder: {path.absolute()}; {remedy}")
    return encoder_folder(path)


def settings_of_model(value: str | Path) -> dict[str, Any]:
    """Call `settings_of_directory` for a path or a model on the Hub, see `pretrained_directory`.

    Returns:
        The settings; for a model on the Hub also `pretrain_path`, its name with the commit.
    """
    folder = pretrained_directory(value)
    found = settings_of_directory(folder)
    snapshot = next((part for part in (folder, folder.parent) if part.parent.name == "snapshots"), None)
    if snapshot is None:
        return found
    return {**found, "pretrain_path": f"{str(value).partition('@')[0]}@{snapshot.name}"}


@explain_limits()
def load_backbone(path: str | Path) -> Backbone:
    """Load the encoder of a model directory, or of a model on the Hugging Face Hub, in `eval()` mode.

    Args:
        path: a directory of Hugging Face, PaddleNLP, PaddlePALM or palm: weights, and a JSON file with the
            sizes beside them or, as with PaddlePALM's `params`, one level up; or `owner/name` or
            `owner/name@revision` of a model on the Hub.

    Returns:
        A module that maps a dictionary of the tensors of `inputs_attr` to those of `outputs_attr`.

    Raises:
        StorageError: if files are missing or damaged, or belong to another kind of model.
        ConfigError: if sizes are missing or invalid in the JSON file.
    """
    path = pretrained_directory(path)
    if is_sealed(path):
        verify(path)
    directory = read_directory(path)
    backbone = directory.build()
    fill_backbone(backbone, directory.given, directory.path)
    return backbone.eval()


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


MAY_LACK = {
    "pooler.weight": "freshly initialized",
    "pooler.bias": "freshly initialized",
    "embeddings.task.weight": "set to zero, which adds nothing",
}
"""Parameters that some published weights lack -> their initialization in this case."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights that can be loaded."""

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
        given = encoder_weights(path)
    file = find_config(path)
    if file is None or not isinstance(backbone, Backbone):
        return fill_backbone(backbone, given, path)
    if lines := list(_disagreements(backbone, file, given)):
        title = f"the weights of {path} do not belong to this encoder, according to {file}:"
        raise StorageError("\n  ".join([title, *lines]))
    report = fill_backbone(backbone, given, path)
    with wrap_read_errors(file):
        fill_heads(heads, backbone, read_config(file), given.original)
    return report


def resolve_pooling(backbone: nn.Module, path: Path) -> None:
    """Replace `pooling: model` by the pooling of a directory; the log tells if another one was set."""
    if not isinstance(backbone, TokenEncoder):
        return
    if backbone.settings["pooling"] == "model":
        backbone.set_pooling(directory_pooling(path))
    elif is_sentence_encoder(path) and (own := computable_pooling(path)) not in ("model", backbone.pooling):
        logger.info("pooling: %s; that of %s itself is %s", backbone.pooling, path, own)


def _report(parameters: Collection[str], given: Renamed, path: Path) -> Report:
    surplus = [name for name in given.weights if name not in parameters]
    heads = [name for name in surplus if name in MAY_LACK]  # a pooler, if the pooling is not cls
    return Report(
        path,
        loaded=tuple(name for name in parameters if name in given.weights),
        missing=tuple(name for name in parameters if name not in given.weights),
        left_out=(*given.left_out, *heads),
        unused=(*given.unused, *(name for name in surplus if name not in heads)),
    )


def fill_backbone(backbone: nn.Module, given: Renamed, path: Path) -> Report:
    """Load weights that were already read; see `load_pretrain`."""
    resolve_pooling(backbone, path)
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
    report = _report(parameters, given, path)
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
    for kind in dict.fromkeys(value.dtype for value in found.values() if value.dtype not in FLOATS):
        names = [name for name, value in found.items() if value.dtype == kind]
        yield f"values of type {kind}, as in quantized weights, in {len(names)}: {_listed(names)}"
    # Only tensors of the right shape, because a file may claim far larger ones than it has.
    fitting = {n: v for n, v in found.items() if v.shape == parameters[n].shape and v.dtype in FLOATS}
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
