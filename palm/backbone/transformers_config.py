"""Families of the `transformers` library that palm runs, and settings of their files that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from palm.core.errors import ConfigError, PalmError
from palm.core.files.untrusted import read_object

PACKED = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "data2vec-text",
        "distilbert",
        "electra",
        "ernie",
        "eurobert",
        "gte",
        "jina_embeddings_v3",
        "modernbert",
        "nomic_bert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "ultrabert",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)
"""Families whose packed outputs and gradients equal those of every text alone, by test."""

PADDED = frozenset(
    {
        "big_bird",
        "deberta",
        "deberta-v2",
        "esm",
        "flaubert",
        "ibert",
        "luke",
        "megatron-bert",
        "mpnet",
        "rembert",
        "roformer",
        "xlm",
    }
)
"""Families whose attention cannot be replaced, or that mix neighbouring tokens outside of attention."""

REFUSED = {
    "auto_map": "names code of the directory's author, which palm never runs",
    "attn_implementation": "chooses an attention implementation, which the library may download",
    "_attn_implementation": "chooses an attention implementation, which the library may download",
    "_attn_implementation_internal": "chooses an attention implementation, which the library may download",
    "experts_implementation": "chooses an implementation, which the library may download",
    "kernel_config": "names kernels to be loaded",
    "use_kernels": "names kernels to be loaded",
    "quantization_config": "describes quantized weights, which palm does not compute with",
}
"""Setting of a foreign `config.json` -> why a directory with it is refused, whatever its value (but none)."""

FLAGS = {
    "is_decoder": "makes a decoder of the model",
    "add_cross_attention": "makes a decoder of the model",
    "is_encoder_decoder": "describes an encoder and a decoder",
}
"""The same for settings that are refused where they are true."""


def refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """Messages about settings that palm does not follow, nested ones included."""
    for name, value in config.items():
        if name in REFUSED and value not in (None, {}, False):
            yield f"{name} {REFUSED[name]}; use a directory without it"
        elif name in FLAGS and value:
            yield f"{name}: {value!r} {FLAGS[name]}; palm trains encoders"
        elif isinstance(value, Mapping):
            yield from refusals(value)


def read_encoder_config(path: Path) -> Any:
    """Read the configuration of an encoder as the library's own object, which chooses no code by itself.

    Args:
        path: a `config.json` of the library.

    Raises:
        ConfigError: the library is missing, or the file says what palm refuses, with every such setting; or
            it describes no encoder, or one that the library cannot make.
    """
    config = read_object(path)
    problems = [f"{path}: {problem}" for problem in refusals(config)]
    kind = config.get("model_type")
    if not isinstance(kind, str):
        problems.append(f"{path}: model_type should name a family of the transformers library, not {kind!r}")
    if problems:
        raise ConfigError(problems)
    assert isinstance(kind, str)
    if kind not in PACKED | PADDED:
        known = ", ".join(sorted(PACKED | PADDED))
        raise ConfigError(f"{path}: palm runs no model of type {kind!r}; it runs {known}")
    given = {name: value for name, value in config.items() if name not in ("model_type", "reference_compile")}
    try:
        return library().AutoConfig.for_model(kind, **given)
    except PalmError:
        raise
    except Exception as error:  # the library checks values by errors of many kinds
        reason = str(error).strip().splitlines()
        raise ConfigError(f"{path}: {kind}: {reason[-1] if reason else type(error).__name__}") from error


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
