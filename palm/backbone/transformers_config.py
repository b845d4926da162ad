"""Families of the `transformers` library that palm runs, and settings of their files that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palm.core.errors import ConfigError
from palm.core.files.untrusted import read_object

FAMILIES = {
    "packed": "albert bert camembert data2vec-text distilbert electra ernie eurobert gte jina_embeddings_v3"
    " modernbert nomic_bert roberta roberta-prelayernorm roc_bert ultrabert xlm-roberta xlm-roberta-xl",
    "padded": "big_bird deberta deberta-v2 esm esmc flaubert ibert luke megatron-bert mpnet rembert roformer"
    " squeezebert xlm",
    "it is an encoder and a decoder": "bart mbart mvp",
    "it mixes tokens with padding": "convbert fnet funnel mobilebert nystromformer reformer yoso",
    "it gives no vector of every token": "perceiver",
    "it reads boxes, tables, images or sounds": "layoutlm modernvbert neomme tapas ultravbert",
    "it has adapters by language": "xmod",
    "its tasks choose tokens that attend to all others": "longformer",
    "its attention is a kernel that the library downloads": "mra",
}
"""How families run, or why palm refuses them -> their `model_type`.

Packed outputs and gradients equal those of every text alone, by test, and so do padded ones. The attention of
the latter cannot be replaced, or they mix neighbouring tokens outside of it.
"""

PACKED = frozenset(FAMILIES["packed"].split())
RUN = PACKED.union(FAMILIES["padded"].split())

_ATTENTION = "chooses an attention implementation, which the library may download"
_DECODER = "makes a decoder of the model, and palm trains encoders"

REFUSED = {
    "auto_map": "names code of the directory's author, which palm never runs",
    "attn_implementation": _ATTENTION,
    "_attn_implementation": _ATTENTION,
    "_attn_implementation_internal": _ATTENTION,
    "experts_implementation": "chooses an implementation, which the library may download",
    "kernel_config": "names kernels to be loaded",
    "use_kernels": "names kernels to be loaded",
    "quantization_config": "describes quantized weights, which palm does not compute with",
    "is_decoder": _DECODER,
    "add_cross_attention": _DECODER,
    "is_encoder_decoder": _DECODER,
}
"""Setting of a foreign `config.json` -> why a directory with it is refused, unless it is empty or false."""


def refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """Messages about settings that palm does not follow, nested ones included."""
    for name, value in config.items():
        if name in REFUSED and value:
            yield f"{name} {REFUSED[name]}; use a directory without it"
        elif isinstance(value, Mapping):
            yield from refusals(value)


def unknown(kind: object) -> str:
    """Return the message about a family that palm does not run."""
    reason = next((f", because {why}" for why, kinds in FAMILIES.items() if kind in kinds.split()), "")
    return f"palm runs no model of type {kind!r}{reason}; it runs {', '.join(sorted(RUN))}"


def read_encoder_config(path: Path) -> Any:
    """Read the `config.json` of an encoder as the library's own object, which chooses no code by itself.

    Raises:
        ConfigError: the library is missing or cannot make it, or the file says what palm refuses; with all.
    """
    config = read_object(path)
    kind = str(config.pop("model_type", None))
    problems = list(refusals(config))
    if kind not in RUN:
        problems.append(unknown(kind))
    if problems:
        raise ConfigError(f"{path}: {problem}" for problem in problems)
    make = library().AutoConfig.for_model
    config.pop("reference_compile", None)
    try:
        return make(kind, **config)
    except Exception as error:  # the library checks values by errors of many kinds
        reason = str(error).strip().rpartition("\n")[2]
        raise ConfigError(f"{path}: {kind}: {type(error).__name__}: {reason.strip()}") from error


def library() -> Any:
    """Import `transformers`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"backbone: transformers needs the library ({error}); pip install 'palm-torch[hf]'"
        ) from None
    return transformers
