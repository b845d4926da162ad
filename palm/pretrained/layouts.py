"""What an encoder's modules are called by the programs that write weights: tables, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LayoutName = Literal["palm", "huggingface", "distilbert", "google", "paddlepalm", "paddlenlp"]

Suffixes = tuple[str, str]
"""What follows a module's name for its weight and for its bias."""


@dataclass(frozen=True)
class Layout:
    """How one program names tensors, and how it lays out linear weights.

    Args:
        modules: our name -> its name; `{}` is the number of the layer.
        linear: suffixes of linear layers.
        norm: suffixes of layer norms.
        embedding: suffix of embedding tables.
        turned: whether linear weights are [in, out]; ours are [out, in].
        also: further names that its files may use -> ours; read, never written.
    """

    modules: Mapping[str, str]
    linear: Suffixes = (".weight", ".bias")
    norm: Suffixes = (".weight", ".bias")
    embedding: str = ".weight"
    turned: bool = False
    also: Mapping[str, str] | None = None

    @property
    def names(self) -> dict[str, str]:
        """Our name of every tensor -> its name."""
        found = {}
        for module, theirs in self.modules.items():
            if module in EMBEDDINGS:
                found[f"{module}.weight"] = theirs + self.embedding
            else:
                weight, bias = self.norm if module.endswith("norm") else self.linear
                found |= {f"{module}.weight": theirs + weight, f"{module}.bias": theirs + bias}
        return found


def is_linear_weight(ours: str) -> bool:
    """Whether one of our names is that of a linear layer's weight."""
    module, _, kind = ours.rpartition(".")
    return kind == "weight" and module not in EMBEDDINGS and not module.endswith("norm")


EMBEDDINGS = ("embeddings.word", "embeddings.position", "embeddings.segment", "embeddings.task")

_BERT = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.task": "embeddings.task_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings.projection": "embeddings_project",
    "layers.{}.attention.query": "encoder.layer.{}.attention.self.query",
    "layers.{}.attention.key": "encoder.layer.{}.attention.self.key",
    "layers.{}.attention.value": "encoder.layer.{}.attention.self.value",
    "layers.{}.attention.output": "encoder.layer.{}.attention.output.dense",
    "layers.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "layers.{}.ffn.inner": "encoder.layer.{}.intermediate.dense",
    "layers.{}.ffn.outer": "encoder.layer.{}.output.dense",
    "layers.{}.ffn_norm": "encoder.layer.{}.output.LayerNorm",
    "pooler": "pooler.dense",
}

LAYOUTS: dict[LayoutName, Layout] = {
    "palm": Layout({module: module for module in _BERT}),
    # BERT, RoBERTa, ERNIE and ELECTRA. Their classifiers may hold the pooler instead of the encoder.
    "huggingface": Layout(
        _BERT,
        also={"classifier.dense.weight": "pooler.weight", "classifier.dense.bias": "pooler.bias"},
    ),
    "distilbert": Layout(
        {
            "embeddings.word": "embeddings.word_embeddings",
            "embeddings.position": "embeddings.position_embeddings",
            "embeddings.norm": "embeddings.LayerNorm",
            "layers.{}.attention.query": "transformer.layer.{}.attention.q_lin",
            "layers.{}.attention.key": "transformer.layer.{}.attention.k_lin",
            "layers.{}.attention.value": "transformer.layer.{}.attention.v_lin",
            "layers.{}.attention.output": "transformer.layer.{}.attention.out_lin",
            "layers.{}.attention_norm": "transformer.layer.{}.sa_layer_norm",
            "layers.{}.ffn.inner": "transformer.layer.{}.ffn.lin1",
            "layers.{}.ffn.outer": "transformer.layer.{}.ffn.lin2",
            "layers.{}.ffn_norm": "transformer.layer.{}.output_layer_norm",
            "pooler": "pre_classifier",
        }
    ),
    # The variables of BERT's and ELECTRA's published programs.
    "google": Layout(
        {ours: theirs.replace(".{}", "_{}").replace(".", "/") for ours, theirs in _BERT.items()},
        linear=("/kernel", "/bias"),
        norm=("/gamma", "/beta"),
        embedding="",
        turned=True,
    ),
    "paddlepalm": Layout(
        {
            "embeddings.word": "word_embedding",
            "embeddings.position": "pos_embedding",
            "embeddings.segment": "sent_embedding",
            "embeddings.task": "task_embedding",
            "embeddings.norm": "pre_encoder_layer_norm",
            "layers.{}.attention.query": "encoder_layer_{}_multi_head_att_query_fc",
            "layers.{}.attention.key": "encoder_layer_{}_multi_head_att_key_fc",
            "layers.{}.attention.value": "encoder_layer_{}_multi_head_att_value_fc",
            "layers.{}.attention.output": "encoder_layer_{}_multi_head_att_output_fc",
            "layers.{}.attention_norm": "encoder_layer_{}_post_att_layer_norm",
            "layers.{}.ffn.inner": "encoder_layer_{}_ffn_fc_0",
            "layers.{}.ffn.outer": "encoder_layer_{}_ffn_fc_1",
            "layers.{}.ffn_norm": "encoder_layer_{}_post_ffn_layer_norm",
            "pooler": "pooled_fc",
        },
        linear=(".w_0", ".b_0"),
        norm=("_scale", "_bias"),
        embedding="",
        turned=True,
    ),
    "paddlenlp": Layout(
        {
            "embeddings.word": "embeddings.word_embeddings",
            "embeddings.position": "embeddings.position_embeddings",
            "embeddings.segment": "embeddings.token_type_embeddings",
            "embeddings.task": "embeddings.task_type_embeddings",
            "embeddings.norm": "embeddings.layer_norm",
            "embeddings.projection": "embeddings_project",
            "layers.{}.attention.query": "encoder.layers.{}.self_attn.q_proj",
            "layers.{}.attention.key": "encoder.layers.{}.self_attn.k_proj",
            "layers.{}.attention.value": "encoder.layers.{}.self_attn.v_proj",
            "layers.{}.attention.output": "encoder.layers.{}.self_attn.out_proj",
            "layers.{}.attention_norm": "encoder.layers.{}.norm1",
            "layers.{}.ffn.inner": "encoder.layers.{}.linear1",
            "layers.{}.ffn.outer": "encoder.layers.{}.linear2",
            "layers.{}.ffn_norm": "encoder.layers.{}.norm2",
            "pooler": "pooler.dense",
        },
        turned=True,
    ),
}
"""Program -> its names."""

PREFIXES = (
    *("module.", "backbone.", "__paddlepalm_"),
    *("bert.", "ernie.", "roberta.", "distilbert.", "electra."),
    *("bert/", "electra/"),
)
"""What files put before an encoder's names."""

LEFT_OUT = (
    r"(?:^|[./])(?:cls|classifier|pre_classifier|qa_outputs|paradigms?|heads|lm_head|mc_classifier)[./]",
    r"(?:^|\.)(?:vocab_(?:transform|layer_norm|projector)|generator_lm_head)\.",
    r"(?:^|\.)(?:discriminator_predictions|generator_predictions)[./]",
    r"position_ids$|token_type_ids$",
    r"mask_lm_|next_sent|cls_out_|cls_squad_out_|crfw",
    r"^generator/|^output_(?:weights|bias)$|^global_step$|/adam_[mv]$",
)
"""Heads, constants and an optimizer's memory, which an encoder has no place for."""
