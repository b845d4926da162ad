"""What the same tensors are called here, by Hugging Face and by PaddlePALM, both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Layout = Literal["huggingface", "paddlepalm"]

LAYOUTS: dict[Layout, dict[str, str]] = {
    "huggingface": {
        "embeddings.word.weight": "embeddings.word_embeddings.weight",
        "embeddings.position.weight": "embeddings.position_embeddings.weight",
        "embeddings.segment.weight": "embeddings.token_type_embeddings.weight",
        "embeddings.task.weight": "embeddings.task_type_embeddings.weight",
        "embeddings.norm.weight": "embeddings.LayerNorm.weight",
        "embeddings.norm.bias": "embeddings.LayerNorm.bias",
        "layers.{}.attention.query.weight": "encoder.layer.{}.attention.self.query.weight",
        "layers.{}.attention.query.bias": "encoder.layer.{}.attention.self.query.bias",
        "layers.{}.attention.key.weight": "encoder.layer.{}.attention.self.key.weight",
        "layers.{}.attention.key.bias": "encoder.layer.{}.attention.self.key.bias",
        "layers.{}.attention.value.weight": "encoder.layer.{}.attention.self.value.weight",
        "layers.{}.attention.value.bias": "encoder.layer.{}.attention.self.value.bias",
        "layers.{}.attention.output.weight": "encoder.layer.{}.attention.output.dense.weight",
        "layers.{}.attention.output.bias": "encoder.layer.{}.attention.output.dense.bias",
        "layers.{}.attention_norm.weight": "encoder.layer.{}.attention.output.LayerNorm.weight",
        "layers.{}.attention_norm.bias": "encoder.layer.{}.attention.output.LayerNorm.bias",
        "layers.{}.ffn.inner.weight": "encoder.layer.{}.intermediate.dense.weight",
        "layers.{}.ffn.inner.bias": "encoder.layer.{}.intermediate.dense.bias",
        "layers.{}.ffn.outer.weight": "encoder.layer.{}.output.dense.weight",
        "layers.{}.ffn.outer.bias": "encoder.layer.{}.output.dense.bias",
        "layers.{}.ffn_norm.weight": "encoder.layer.{}.output.LayerNorm.weight",
        "layers.{}.ffn_norm.bias": "encoder.layer.{}.output.LayerNorm.bias",
        "pooler.weight": "pooler.dense.weight",
        "pooler.bias": "pooler.dense.bias",
    },
    "paddlepalm": {
        "embeddings.word.weight": "word_embedding",
        "embeddings.position.weight": "pos_embedding",
        "embeddings.segment.weight": "sent_embedding",
        "embeddings.task.weight": "task_embedding",
        "embeddings.norm.weight": "pre_encoder_layer_norm_scale",
        "embeddings.norm.bias": "pre_encoder_layer_norm_bias",
        "layers.{}.attention.query.weight": "encoder_layer_{}_multi_head_att_query_fc.w_0",
        "layers.{}.attention.query.bias": "encoder_layer_{}_multi_head_att_query_fc.b_0",
        "layers.{}.attention.key.weight": "encoder_layer_{}_multi_head_att_key_fc.w_0",
        "layers.{}.attention.key.bias": "encoder_layer_{}_multi_head_att_key_fc.b_0",
        "layers.{}.attention.value.weight": "encoder_layer_{}_multi_head_att_value_fc.w_0",
        "layers.{}.attention.value.bias": "encoder_layer_{}_multi_head_att_value_fc.b_0",
        "layers.{}.attention.output.weight": "encoder_layer_{}_multi_head_att_output_fc.w_0",
        "layers.{}.attention.output.bias": "encoder_layer_{}_multi_head_att_output_fc.b_0",
        "layers.{}.attention_norm.weight": "encoder_layer_{}_post_att_layer_norm_scale",
        "layers.{}.attention_norm.bias": "encoder_layer_{}_post_att_layer_norm_bias",
        "layers.{}.ffn.inner.weight": "encoder_layer_{}_ffn_fc_0.w_0",
        "layers.{}.ffn.inner.bias": "encoder_layer_{}_ffn_fc_0.b_0",
        "layers.{}.ffn.outer.weight": "encoder_layer_{}_ffn_fc_1.w_0",
        "layers.{}.ffn.outer.bias": "encoder_layer_{}_ffn_fc_1.b_0",
        "layers.{}.ffn_norm.weight": "encoder_layer_{}_post_ffn_layer_norm_scale",
        "layers.{}.ffn_norm.bias": "encoder_layer_{}_post_ffn_layer_norm_bias",
        "pooler.weight": "pooled_fc.w_0",
        "pooler.bias": "pooled_fc.b_0",
    },
}
"""Layout -> our name -> its name; `{}` is the number of the layer."""

PREFIXES = ("bert.", "ernie.", "backbone.", "__paddlepalm_")
"""What files put before an encoder's names."""

LEFT_OUT = re.compile(
    r"(?:^|\.)(?:cls|classifier|qa_outputs|paradigms?)\.|position_ids$|token_type_ids$"
    r"|mask_lm_|next_sent|cls_out_|cls_squad_out_|crfw"
)
"""Output layers and constants, which an encoder has no place for."""

_LAYER = re.compile(r"(?<=layer[._])\d+(?=[._])|(?<=layers\.)\d+(?=\.)")
_OURS = {ours: ours for ours in LAYOUTS["huggingface"]} | {
    theirs: ours for table in LAYOUTS.values() for ours, theirs in table.items()
}


@dataclass(frozen=True)
class Renamed:
    """A file's tensors under our names.

    Args:
        weights: our name -> tensor, linear weights as [out, in].
        left_out: the file's names of output layers and constants.
        unused: the file's other names.
    """

    weights: dict[str, Tensor]
    left_out: list[str]
    unused: list[str]


def to_ours(tensors: Mapping[str, Tensor]) -> Renamed:
    """Tensors of any known layout, ours included, under our names."""
    renamed = Renamed({}, [], [])
    for name, value in tensors.items():
        ours = _own_name(name)
        if ours is not None:
            renamed.weights[ours] = _turned(value, name)
        else:
            (renamed.left_out if LEFT_OUT.search(name) else renamed.unused).append(name)
    return renamed


def from_ours(weights: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """An encoder's `state_dict()` under the names, and in the orientation, of another program."""
    theirs = {ours: _looked_up(LAYOUTS[layout], ours) or ours for ours in weights}
    return {theirs[ours]: _turned(value, theirs[ours]) for ours, value in weights.items()}


def _own_name(name: str) -> str | None:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    # Checkpoints that early programs converted from TensorFlow keep its words for a norm's weights.
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return _looked_up(_OURS, name)


def _looked_up(table: Mapping[str, str], name: str) -> str | None:
    layer = _LAYER.search(name)
    if layer is None:
        return table.get(name)
    found = table.get(f"{name[: layer.start()]}{{}}{name[layer.end() :]}")
    return found and found.format(layer.group())


def _turned(value: Tensor, theirs: str) -> Tensor:
    """PaddlePALM keeps linear weights as [in, out]."""
    return value.t() if theirs.endswith(".w_0") else value
