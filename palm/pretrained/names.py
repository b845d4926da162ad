"""Names of other programs for the parameters of an encoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

LayoutName = Literal["palm", "huggingface", "distilbert", "paddlepalm", "paddlenlp"]

Suffixes = tuple[str, str]
"""Suffixes of the names of a module's weight and bias."""


@dataclass(frozen=True)
class Layout:
    """Names of tensors in one framework, and its orientation of linear weights.

    Args:
        outside: its names of embeddings and pooler, in the order of ours; `-` for none.
        prefix: prefix of the names of a layer; `{}` is the number of the layer.
        layer: names of the modules in a layer, in the order of ours.
        linear: suffixes of linear layers.
        norm: suffixes of layer norms.
        embedding: suffix of embedding tables.
        transposed: True if linear weights are [in, out]; ours are [out, in].
        also: alternative names in its files -> ours; read, but never written.
    """

    outside: str
    prefix: str
    layer: str
    linear: Suffixes = (".weight", ".bias")
    norm: Suffixes = (".weight", ".bias")
    embedding: str = ".weight"
    transposed: bool = False
    also: Mapping[str, str] | None = None

    def modules(self) -> list[str]:
        """List the names of all modules."""
        return [*self.outside.split(), *(self.prefix + name for name in self.layer.split())]

    @property
    def names(self) -> dict[str, str]:
        """Map our name of every tensor to its name."""
        names = {}
        for module, theirs in zip(_OURS.modules(), self.modules(), strict=True):
            if theirs == "-":
                continue
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

_OURS = Layout(
    f"{' '.join(EMBEDDINGS)} embeddings.norm embeddings.projection pooler",
    "layers.{}.",
    "attention.query attention.key attention.value attention.output attention_norm "
    "ffn.inner ffn.outer ffn_norm",
)

LAYOUTS: dict[LayoutName, Layout] = {
    "palm": _OURS,
    # BERT, RoBERTa, ERNIE and ELECTRA. The pooler may be in the classifier instead of the encoder.
    "huggingface": Layout(
        "embeddings.word_embeddings embeddings.position_embeddings embeddings.token_type_embeddings "
        "embeddings.task_type_embeddings embeddings.LayerNorm embeddings_project pooler.dense",
        "encoder.layer.{}.",
        "attention.self.query attention.self.key attention.self.value attention.output.dense "
        "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
        also={"classifier.dense.weight": "pooler.weight", "classifier.dense.bias": "pooler.bias"},
    ),
    "distilbert": Layout(
        "embeddings.word_embeddings embeddings.position_embeddings - - embeddings.LayerNorm - pre_classifier",
        "transformer.layer.{}.",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm "
        "ffn.lin1 ffn.lin2 output_layer_norm",
    ),
    "paddlepalm": Layout(
        "word_embedding pos_embedding sent_embedding task_embedding pre_encoder_layer_norm - pooled_fc",
        "encoder_layer_{}_",
        "multi_head_att_query_fc multi_head_att_key_fc multi_head_att_value_fc multi_head_att_output_fc "
        "post_att_layer_norm ffn_fc_0 ffn_fc_1 post_ffn_layer_norm",
        linear=(".w_0", ".b_0"),
        norm=("_scale", "_bias"),
        embedding="",
        transposed=True,
    ),
    "paddlenlp": Layout(
        "embeddings.word_embeddings embeddings.position_embeddings embeddings.token_type_embeddings "
        "embeddings.task_type_embeddings embeddings.layer_norm embeddings_project pooler.dense",
        "encoder.layers.{}.",
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj norm1 linear1 linear2 norm2",
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


_LAYER = re.compile(r"(?<=layer[._])\d+(?=[._])|(?<=layers\.)\d+(?=\.)")
_LEFT_OUT = re.compile("|".join(LEFT_OUT))
_TO_OURS = {
    name: {theirs: ours for ours, theirs in layout.names.items()} | dict(layout.also or {})
    for name, layout in LAYOUTS.items()
}


@dataclass(frozen=True)
class Renamed:
    """A file's tensors under our names.

    Args:
        layout: the layout of the file's names; 'palm' if none of them is known.
        weights: our name -> tensor, linear weights as [out, in].
        left_out: the file's names of heads and constants.
        unused: all other names in the file.
        original: the file's tensors under its own names, without the prefixes of wrappers.
    """

    layout: LayoutName
    weights: dict[str, Tensor]
    left_out: list[str]
    unused: list[str]
    original: Mapping[str, Tensor]


def to_ours(tensors: Mapping[str, Tensor]) -> Renamed:
    """Rename tensors of any known layout, including our own, to our names.

    The layout with the most matching names is chosen, the first one on a tie. An alternative name is used
    only if the layout's own name is missing.
    """
    tensors = _unwrapped(tensors)
    layout = max(LAYOUTS, key=lambda name: sum(_own_name(theirs, name) is not None for theirs in tensors))
    own = LAYOUTS[layout].names.values()
    renamed = Renamed(layout, {}, [], [], tensors)
    # False sorts first, so a layout's own names take precedence over alternative ones.
    for theirs in sorted(tensors, key=lambda name: _with_placeholder(_without_prefix(name)) not in own):
        ours = _own_name(theirs, layout)
        if ours is not None and ours not in renamed.weights:
            renamed.weights[ours] = _reoriented(tensors[theirs], ours, LAYOUTS[layout])
        else:
            (renamed.left_out if _LEFT_OUT.search(theirs) else renamed.unused).append(theirs)
    return renamed


def from_ours(weights: Mapping[str, Tensor], layout: LayoutName) -> dict[str, Tensor]:
    """Convert an encoder's `state_dict()` to the names and the orientation of another framework."""
    names = LAYOUTS[layout].names
    return {
        _lookup(names, ours) or ours: _reoriented(value, ours, LAYOUTS[layout])
        for ours, value in weights.items()
    }


def _unwrapped(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Remove the prefixes that all names have because the model was an attribute of something else."""
    while prefix := next(
        (one for one in WRAPPERS if tensors and all(n.startswith(one) for n in tensors)), None
    ):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _own_name(name: str, layout: LayoutName) -> str | None:
    return _lookup(_TO_OURS[layout], _without_prefix(name))


def _without_prefix(name: str) -> str:
    while prefix := next((one for one in PREFIXES if name.startswith(one)), None):
        name = name.removeprefix(prefix)
    # Checkpoints converted from TensorFlow by early tools keep its names for the weights of norms.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _lookup(table: Mapping[str, str], name: str) -> str | None:
    layer = _LAYER.search(name)
    found = table.get(_with_placeholder(name))
    return found and found.format(layer.group() if layer else "")


def _with_placeholder(name: str) -> str:
    """Replace the number of the layer by `{}`."""
    return _LAYER.sub("{}", name, count=1)


def _reoriented(value: Tensor, ours: str, layout: Layout) -> Tensor:
    return value.t() if layout.transposed and is_linear_weight(ours) else value
