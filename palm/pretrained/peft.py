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
from palm.config.model_names import ADAPTER_CONFIG
from palm.core.differences import shortened
from palm.core.errors import StorageError
from palm.core.files.fs import write_json
from palm.core.files.tensors import load_tensors, save_tensors
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.pretrained.families import FAMILIES
from palm.pretrained.names import from_ours

WEIGHTS = "adapter_model.safetensors"
START = "base_model.model."
"""How the names of all tensors begin."""

PLAIN: dict[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "alpha_pattern": {},
}
"""Settings of the format that have one value here: others change what is computed."""


def library_names(backbone: Backbone) -> dict[str, str]:
    """Our name of every linear layer -> its name in the encoder of the library `transformers`."""
    layers = linear_layers(backbone)
    if isinstance(backbone, Transformers):
        return {name: name.removeprefix("model.") for name in layers if name.startswith("model.")}
    family = FAMILIES.get(BACKBONES.name_of(type(backbone)))
    layout = "huggingface" if family is None else family.layout
    theirs = from_ours({f"{name}.weight": layer.weight for name, layer in layers.items()}, layout)
    return {name: other.removesuffix(".weight") for name, other in zip(layers, theirs, strict=True)}


def write_adapters(adapters: LowRank, backbone: Backbone, folder: Path, base: str | None = None) -> None:
    """Write a task's adapters, as `PeftModel.from_pretrained(AutoModel.from_pretrained(base), folder)` reads.

    Args:
        adapters: of the task.
        backbone: the encoder that they are of.
        folder: a folder that exists.
        base: the weights that they change; None where no directory has them.

    Raises:
        StorageError: the place cannot be written.
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
    """Read adapters, those of models with heads among them, for an encoder.

    Raises:
        StorageError: missing, damaged, of another method than LoRA, or not for this encoder.
    """
    with wrap_read_errors(folder / ADAPTER_CONFIG):
        config = read_object(folder / ADAPTER_CONFIG)
        problems = list(_problems(config))
        alpha = float(config["lora_alpha"])
    with wrap_read_errors(folder / WEIGHTS):
        found, others = _factors(load_tensors(folder / WEIGHTS), library_names(backbone))
    layers = {name: layer for name, layer in linear_layers(backbone).items() if name in found}
    problems += [
        f"{name} does not fit its layer, whose weight is {list(layer.weight.shape)}"
        for name, layer in layers.items()
        if not _fits(found[name], layer.weight)
    ]
    problems += [] if found else ["no layer of this encoder is in it"]
    problems += [f"nothing takes {name}" for name in others if "lora_" in name]
    if problems:
        shown = "; ".join(shortened(problems, 6))
        raise StorageError(f"{folder}: these adapters do not fit {type(backbone).__name__}: {shown}")
    if others:
        logger.info("%s: left out, of a head: %s", folder, ", ".join(shortened(others, 6)))
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
            yield f"{name} is {config[name]!r}, and only {value!r} is read"


def _factors(
    tensors: Mapping[str, Tensor], names: Mapping[str, str]
) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
    """Our name of a layer -> its A and B; and the names of the other tensors."""
    ours = {theirs: name for name, theirs in names.items()}
    found: dict[str, dict[str, Tensor]] = {}
    others = []
    for name, value in tensors.items():
        layer, _, end = name.removeprefix(START).partition(".lora_")
        # In a model with a head, the encoder's names begin with its own.
        while layer not in ours and "." in layer:
            layer = layer.partition(".")[2]
        if layer in ours and end in ("A.weight", "B.weight"):
            found.setdefault(ours[layer], {})[end[0]] = value
        else:
            others.append(name)
    return found, others


def _fits(factors: Mapping[str, Tensor], weight: Tensor) -> bool:
    if factors.keys() != {"A", "B"}:
        return False
    rank = factors["A"].shape[:1]
    return (factors["A"].shape, factors["B"].shape) == (rank + weight.shape[1:], weight.shape[:1] + rank)
