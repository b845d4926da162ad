"""Tables of the names of an encoder's modules in the weight files of other frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LayoutName = Literal["palm", "huggingface", "distilbert", "paddlepalm", "paddlenlp"]

Suffixes = tuple[str, str]
"""Suffixes of the names of a module's weight and bias."""


@dataclass(frozen=True)
class Layout:
    """Names of tensors in one framework, and its orientation of linear weights.

    Args:
        modules: our name -> its name; `{}` is the number of the layer.
        linear: suffixes of linear layers.
        norm: suffixes of layer norms.
        embedding: suffix of embedding tables.
        transposed: True if linear weights are [in, out]; ours are [out, in].
        also: alternative names in its files -> ours; read, but never written.
    """

    modules: Mapping[str, str]
    linear: Suffixes = (".weight", ".bias")
    norm: Suffixes = (".weight", ".bias")
    embedding: str = ".weight"
    transposed: bool = False
    also: Mapping[str, str] | None = None

    @property
    def names(self) -> dict[str, str]:
        """Map our name of every tensor to its name."""
        names = {}
        for module, theirs in self.modules.items():
            if module in EMBEDDINGS:
                names[f"{module}.weight"] = theirs + self.embedding
            else:
                weight, bias = self.norm if module.endswith("norm") else self.linear
                names |= {f"{module}.weight": theirs + weight, f"{module}.bias": theirs + bias}
        return names


def is_linear_weight(ours: str) -> bool:
    """Check whether one of our names is that of a linear layer's weight."""
    module, _, kind = ours.rpartition(".")
    return kind == "weight" and module not in EMBEDDINGS and not module.endswith("norm")


EMBEDDINGS = ("embeddings.word", "embeddings.position", "embeddings.segment", "embeddings.task")

_OUTSIDE = (*EMBEDDINGS, "embeddings.norm", "embeddings.projection", "pooler")
_LAYER = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "attention_norm",
    "ffn.inner",
    "ffn.outer",
    "ffn_norm",
)


def _modules(outside: str, prefix: str, layer: str) -> dict[str, str]:
    """Map our modules to the names in a framework, given in the order of ours; `-` for none.

    Args:
        outside: names of embeddings and pooler.
        prefix: prefix of a layer.
        layer: names of the modules in a layer.
    """
    theirs = [*outside.split(), *(prefix + name for name in layer.split())]
    ours = [*_OUTSIDE, *(f"layers.{{}}.{name}" for name in _LAYER)]
    return {name: other for name, other in zip(ours, theirs, strict=True) if other != "-"}


_BERT = _modules(
    "embeddings.word_embeddings embeddings.position_embeddings embeddings.token_type_embeddings "
    "embeddings.task_type_embeddings embeddings.LayerNorm embeddings_project pooler.dense",
    "encoder.layer.{}.",
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
)

LAYOUTS: dict[LayoutName, Layout] = {
    "palm": Layout({module: module for module in _BERT}),
    # BERT, RoBERTa, ERNIE and ELECTRA. The pooler may be in the classifier instead of the encoder.
    "huggingface": Layout(
        _BERT,
        also={"classifier.dense.weight": "pooler.weight", "classifier.dense.bias": "pooler.bias"},
    ),
    "distilbert": Layout(
        _modules(
            "embeddings.word_embeddings embeddings.position_embeddings - - embeddings.LayerNorm - "
            "pre_classifier",
            "transformer.layer.{}.",
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm "
            "ffn.lin1 ffn.lin2 output_layer_norm",
        )
    ),
    "paddlepalm": Layout(
        _modules(
            "word_embedding pos_embedding sent_embedding task_embedding pre_encoder_layer_norm - pooled_fc",
            "encoder_layer_{}_",
            "multi_head_att_query_fc multi_head_att_key_fc multi_head_att_value_fc multi_head_att_output_fc "
            "post_att_layer_norm ffn_fc_0 ffn_fc_1 post_ffn_layer_norm",
        ),
        linear=(".w_0", ".b_0"),
        norm=("_scale", "_bias"),
        embedding="",
        transposed=True,
    ),
    "paddlenlp": Layout(
        _modules(
            "embeddings.word_embeddings embeddings.position_embeddings embeddings.token_type_embeddings "
            "embeddings.task_type_embeddings embeddings.layer_norm embeddings_project pooler.dense",
            "encoder.layers.{}.",
            "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj norm1 linear1 "
            "linear2 norm2",
        ),
        transposed=True,
    ),
}
"""Framework -> its names."""

WRAPPERS = ("_orig_mod.", "module.", "model.", "0.auto_model.")
"""Prefixes of torch.compile, DistributedDataParallel, Lightning and sentence-transformers."""

PREFIXES = (
    *WRAPPERS,
    "backbone.",
    "__paddlepalm_",
    "bert.",
    "ernie.",
    "roberta.",
    "distilbert.",
    "electra.",
)
"""Prefixes of the names of an encoder's tensors in files."""

LEFT_OUT = (
    r"(?:^|\.)(?:cls|classifier|pre_classifier|qa_outputs|paradigms?|heads|lm_head|mc_classifier)\.",
    r"(?:^|\.)(?:vocab_(?:transform|layer_norm|projector)|generator_lm_head)\.",
    r"(?:^|\.)(?:discriminator_predictions|generator_predictions)\.",
    r"position_ids$|token_type_ids$",
    r"mask_lm_|next_sent|cls_out_|cls_squad_out_|crfw",
)
"""Patterns of heads and constants, which are not part of an encoder."""
