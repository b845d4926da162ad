"""Supported families of the `transformers` library, and settings of their files that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palm.core.errors import ConfigError, about
from palm.core.io import read_object

FAMILIES = {
    "packed": "albert bert camembert data2vec-text distilbert electra ernie eurobert gte jina_embeddings_v3"
    " modernbert nomic_bert roberta roberta-prelayernorm roc_bert ultrabert xlm-roberta xlm-roberta-xl",
    "padded": "big_bird deberta deberta-v2 esm esmc flaubert ibert luke megatron-bert mpnet rembert roformer"
    " squeezebert xlm",
    "it is an encoder-decoder": "bart mbart mvp",
    "it mixes tokens with padding": "convbert fnet funnel mobilebert nystromformer reformer yoso",
    "it returns no vector per token": "perceiver",
    "it reads boxes, tables, images or audio": "layoutlm modernvbert neomme tapas ultravbert",
    "it has language-specific adapters": "xmod",
    "its tasks require a choice of tokens with global attention": "longformer",
    "the library downloads its attention kernel": "mra",
}
"""How families run, or why palm refuses them -> their `model_type`.

Outputs and gradients of packed and padded families are tested to equal those of single texts. The attention
of padded families cannot be replaced, or they mix neighbouring tokens outside of attention.
"""

PACKED = frozenset(FAMILIES["packed"].split())
RUN = PACKED.union(FAMILIES["padded"].split())

_ATTENTION = "chooses an attention implementation, which the library may download"
_DECODER = "turns the model into a decoder, but palm trains encoders"

REFUSED = {
    "auto_map": "refers to code of the directory's author, which palm never runs",
    "attn_implementation": _ATTENTION,
    "_attn_implementation": _ATTENTION,
    "_attn_implementation_internal": _ATTENTION,
    "experts_implementation": "chooses an implementation, which the library may download",
    "kernel_config": "loads external kernels",
    "use_kernels": "loads external kernels",
    "quantization_config": "describes quantized weights, which palm does not support",
    "is_decoder": _DECODER,
    "add_cross_attention": _DECODER,
    "is_encoder_decoder": _DECODER,
}
"""Setting of an external `config.json` -> why it is refused, unless it is empty or false."""


def refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each refused setting, including nested ones."""
    for name, value in config.items():
        if name in REFUSED and value:
            yield f"{name} {REFUSED[name]}; use a directory without it"
        elif isinstance(value, Mapping):
            yield from refusals(value)


def unknown(kind: object) -> str:
    """Return the message about an unsupported family."""
    reason = next((f", because {why}" for why, kinds in FAMILIES.items() if kind in kinds.split()), "")
    return f"model type {kind!r} is not supported{reason}; supported are {', '.join(sorted(RUN))}"


def read_encoder_config(path: Path) -> Any:
    """Read the `config.json` of an encoder into the library's configuration class, without loading code.

    Raises:
        ConfigError: if the library is missing or rejects the file, or settings are refused; lists all.
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
    except Exception as error:  # the library reports invalid values with many kinds of errors
        reason = str(error).strip().rpartition("\n")[2]
        raise ConfigError(f"{path}: {kind}: {type(error).__name__}: {reason.strip()}") from error


def library() -> Any:
    """Import `transformers`.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(
            about("backbone", f": transformers needs the library ({error}); pip install 'palm-torch[hf]'")
        ) from None
    return transformers
