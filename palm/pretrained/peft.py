"""Adapters in the format of the library `peft`: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from palm.backbone import BACKBONES, Backbone
from palm.backbone.low_rank import LowRank, alpha_problems, linear_layers
from palm.backbone.transformers import Transformers
from palm.config.files import ADAPTER_CONFIG
from palm.core.errors import StorageError, shortened
from palm.core.io import read_object, wrap_read_errors, write_json
from palm.core.logging import logger
from palm.core.saved import load_tensors, save_tensors
from palm.pretrained.families import FAMILIES
from palm.pretrained.loading import FLOATS
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

IRRELEVANT = (
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r"
    " target_modules exclude_modules lora_alpha lora_dropout modules_to_save init_lora_weights rank_pattern"
    " layers_to_transform layers_pattern megatron_config megatron_core loftq_config eva_config corda_config"
    " lora_ga_config runtime_config qalora_group_size ensure_weight_tying"
)
"""Settings that only matter to training, or follow from the tensors."""


def library_names(backbone: Backbone) -> dict[str, str]:
    """Map our name of every parameter to its name in the encoder of the library `transformers`."""
    state = backbone.state_dict()
    if isinstance(backbone, Transformers):
        return {name: name.removeprefix("model.") for name in state if name.startswith("model.")}
    family = FAMILIES.get(BACKBONES.name_of(type(backbone)))
    return dict(zip(state, from_ours(state, "huggingface" if family is None else family.layout), strict=True))


def _layer_names(backbone: Backbone) -> dict[str, str]:
    """Map our name of every linear layer to the library's."""
    names = library_names(backbone)
    layers = [name for name in linear_layers(backbone) if f"{name}.weight" in names]
    return {name: names[f"{name}.weight"].removesuffix(".weight") for name in layers}


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
    names = _layer_names(backbone)
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
        alpha, patterns = config["lora_alpha"], config.get("rank_pattern") or {}
        problems = [*_problems(config), *alpha_problems(alpha)]
        ranks = {config["r"], *patterns.values()}
    with wrap_read_errors(folder / WEIGHTS):
        found, others = _factors(load_tensors(folder / WEIGHTS), _layer_names(backbone))
    layers = {name: layer for name, layer in linear_layers(backbone).items() if name in found}
    problems += [
        f"{name} is not two finite factors of rank {config['r']} for its weight of {list(layer.weight.shape)}"
        for name, layer in layers.items()
        if not _fits(found[name], layer.weight, ranks)
    ]
    problems += [] if found else ["it contains no layer of this encoder"]
    problems += [f"no layer matches {name}" for name in others if "lora_" in name]
    own = tuple(f".{name}" for name in library_names(backbone).values())
    problems += [f"it replaces {name} of the encoder" for name in others if name.endswith(own)]
    if problems:
        shown = "; ".join(shortened(problems, 6))
        raise StorageError(f"{folder}: these adapters do not fit {type(backbone).__name__}: {shown}")
    if others:
        logger.info("%s: tensors of a head are not loaded: %s", folder, ", ".join(shortened(others, 6)))
    adapters = LowRank(layers, {name: len(found[name]["A"]) for name in layers}, float(alpha), seed=0)
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
    for name in config.keys() - PLAIN.keys() - set(IRRELEVANT.split()):
        if config[name]:
            yield f"{name} is {config[name]!r}, which palm does not know"


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


def _fits(factors: Mapping[str, Tensor], weight: Tensor, ranks: Collection[object]) -> bool:
    """Check the shapes and values of A and B; their rank is one of those that the settings name."""
    if factors.keys() != {"A", "B"} or not all(
        f.dtype in FLOATS and f.isfinite().all() for f in factors.values()
    ):
        return False
    rank = factors["A"].shape[:1]
    shapes = (factors["A"].shape, factors["B"].shape)
    return rank > (0,) and rank[0] in ranks and shapes == (rank + weight.shape[1:], weight.shape[:1] + rank)
