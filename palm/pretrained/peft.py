"""Adapters in the format of the library `peft`: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from palm.backbone import BACKBONES, Backbone
from palm.backbone.low_rank import LowRank, linear_layers
from palm.backbone.transformers import Transformers
from palm.config.files import ADAPTER_CONFIG
from palm.core.errors import StorageError, shortened
from palm.core.io import read_object, wrap_read_errors, write_json
from palm.core.logging import logger
from palm.core.saved import load_tensors, save_tensors
from palm.pretrained.families import FAMILIES
from palm.pretrained.names import from_ours

WEIGHTS = "adapter_model.safetensors"
START = "base_model.model."
"""Prefix of the names of all tensors."""

PLAIN: dict[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "alpha_pattern": {},
}
"""Settings of the format for which only one value is supported; others change the computation."""


def library_names(backbone: Backbone) -> dict[str, str]:
    """Map our name of every linear layer to its name in the encoder of the library `transformers`."""
    layers = linear_layers(backbone)
    if isinstance(backbone, Transformers):
        return {name: name.removeprefix("model.") for name in layers if name.startswith("model.")}
    family = FAMILIES.get(BACKBONES.name_of(type(backbone)))
    layout = "huggingface" if family is None else family.layout
    theirs = from_ours({f"{name}.weight": layer.weight for name, layer in layers.items()}, layout)
    return {name: other.removesuffix(".weight") for name, other in zip(layers, theirs, strict=True)}


def write_adapters(adapters: LowRank, backbone: Backbone, folder: Path, base: str | None = None) -> None:
    """Write a task's adapters for `PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)`.

    Args:
        adapters: the task's adapters.
        backbone: their encoder.
        folder: an existing folder.
        base: the weights that they change; None if no directory contains them.

    Raises:
        StorageError: if the folder cannot be written.
    """
    names = library_names(backbone)
    factors = {names.get(name, name): pair for name, pair in adapters.factors().items()}
    ranks = {name: len(down) for name, (down, _) in factors.items()}
    ((rank, _),) = Counter(ranks.values()).most_common(1)
    config = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": adapters.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(factors),
        "rank_pattern": {name: own for name, own in ranks.items() if own != rank},
        "inference_mode": True,
        **PLAIN,
    }
    tensors = {
        f"{START}{name}.lora_{letter}.weight": value
        for name, pair in factors.items()
        for letter, value in zip("AB", pair, strict=True)
    }
    save_tensors(folder / WEIGHTS, tensors)
    write_json(folder / ADAPTER_CONFIG, config)


def read_adapters(backbone: Backbone, folder: Path) -> LowRank:
    """Read adapters for an encoder, also those of models with heads.

    Raises:
        StorageError: if files are missing or damaged, if the method is not LoRA, or if the adapters do not
            fit this encoder.
    """
    with wrap_read_errors(folder / ADAPTER_CONFIG):
        config = read_object(folder / ADAPTER_CONFIG)
        problems = list(_problems(config))
        alpha = float(config["lora_alpha"])
    with wrap_read_errors(folder / WEIGHTS):
        found, others = _factors(load_tensors(folder / WEIGHTS), library_names(backbone))
    layers = {name: layer for name, layer in linear_layers(backbone).items() if name in found}
    problems += [
        f"{name} does not fit its layer, which has a weight of {list(layer.weight.shape)}"
        for name, layer in layers.items()
        if not _fits(found[name], layer.weight)
    ]
    problems += [] if found else ["it contains no layer of this encoder"]
    problems += [f"no layer matches {name}" for name in others if "lora_" in name]
    if problems:
        shown = "; ".join(shortened(problems, 6))
        raise StorageError(f"{folder}: these adapters do not fit {type(backbone).__name__}: {shown}")
    if others:
        logger.info("%s: tensors of a head are not loaded: %s", folder, ", ".join(shortened(others, 6)))
    adapters = LowRank(layers, {name: len(found[name]["A"]) for name in layers}, alpha, seed=0)
    for name, (down, up) in adapters.factors().items():
        down.data.copy_(found[name]["A"])
        up.data.copy_(found[name]["B"])
    return adapters


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    if config["peft_type"] != "LORA":
        yield f"peft_type is {config['peft_type']!r}, not 'LORA'"
    for name, value in PLAIN.items():
        if (config.get(name) or value) != value:
            yield f"{name} is {config[name]!r}, but only {value!r} is supported"


def _factors(
    tensors: Mapping[str, Tensor], names: Mapping[str, str]
) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
    """Map our name of each layer to its A and B; also return the names of all other tensors."""
    ours = {theirs: name for name, theirs in names.items()}
    found: dict[str, dict[str, Tensor]] = {}
    others = []
    for name, value in tensors.items():
        layer, _, suffix = name.removeprefix(START).partition(".lora_")
        # In a model with a head, names have the encoder's name as a prefix.
        while layer not in ours and "." in layer:
            layer = layer.partition(".")[2]
        if layer in ours and suffix in ("A.weight", "B.weight"):
            found.setdefault(ours[layer], {})[suffix[0]] = value
        else:
            others.append(name)
    return found, others


def _fits(factors: Mapping[str, Tensor], weight: Tensor) -> bool:
    if factors.keys() != {"A", "B"}:
        return False
    rank = factors["A"].shape[:1]
    return (factors["A"].shape, factors["B"].shape) == (rank + weight.shape[1:], weight.shape[:1] + rank)
