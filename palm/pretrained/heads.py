"""Tables: the model of Hugging Face that a head becomes, and the names of its weights there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from palm.backbone.transformers_tasks import head_layers
from palm.core.errors import PalmError
from palm.paradigm import HEADS, Head


@dataclass(frozen=True)
class HeadLayout:
    """A head of `transformers`.

    Args:
        model: the end of its class name, `For…`.
        names: our module or parameter -> its name, by our name of the encoder; `""` for all others.
        reads_pooler: whether the encoder keeps its pooler.
        fixed: settings that it has whatever the encoder's are, by our name of the encoder.
    """

    model: str
    names: Mapping[str, Mapping[str, str]]
    reads_pooler: bool = False
    fixed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def names_on(self, backbone: str) -> Mapping[str, str]:
        """Our module or parameter -> its name on an encoder."""
        return self.names.get(backbone, self.names[""])


_SENTENCE = HeadLayout(
    "ForSequenceClassification",
    {
        "": {"out": "classifier"},
        "roberta": {"out": "classifier.out_proj"},
        "electra": {"out": "classifier.out_proj"},
    },
    reads_pooler=True,
)

HEAD_LAYOUTS = {
    "cls": _SENTENCE,
    "match": _SENTENCE,
    "multi_label": _SENTENCE,
    "regression": _SENTENCE,
    "multiple_choice": HeadLayout("ForMultipleChoice", {"": {"out": "classifier"}}, reads_pooler=True),
    "mrc": HeadLayout("ForQuestionAnswering", {"": {"out": "qa_outputs"}}),
    "seq_label": HeadLayout("ForTokenClassification", {"": {"out": "classifier"}}),
    "mlm": HeadLayout(
        "ForMaskedLM",
        {
            "": {
                "transform": "cls.predictions.transform.dense",
                "norm": "cls.predictions.transform.LayerNorm",
                "bias": "cls.predictions.bias",
            },
            "roberta": {"transform": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
            "distilbert": {
                "transform": "vocab_transform",
                "norm": "vocab_layer_norm",
                "bias": "vocab_projector.bias",
            },
            "electra": {
                "transform": "generator_predictions.dense",
                "norm": "generator_predictions.LayerNorm",
                "bias": "generator_lm_head.bias",
            },
        },
        fixed={
            "roberta": {"hidden_act": "gelu"},
            "distilbert": {"layer_norm_eps": 1e-12},
            "electra": {"hidden_act": "gelu"},
        },
    ),
}
"""Our name of the head -> its layout."""


PROBLEM_TYPES = {"multi_label": "multi_label_classification", "regression": "regression"}
"""Our name of a head -> what `transformers` calls its problem, where that is not told by the labels."""


def layout_of_head(head: Head) -> tuple[str, HeadLayout]:
    """Our name of a head, and its layout.

    Raises:
        PalmError: `transformers` has nothing like it.
    """
    name = HEADS.name_of(type(head))
    if name not in HEAD_LAYOUTS:
        raise PalmError(f"Hugging Face has no model with {name!r}; known: {', '.join(HEAD_LAYOUTS)}")
    return name, HEAD_LAYOUTS[name]


def library_names(config: Any, head: HeadLayout) -> dict[str, str] | None:
    """Name the tensors of a head on an encoder of the library in its own model; None without such a model."""
    if (layers := head_layers(config, head.model)) is None:
        return None
    names = {f"above.{ours}": theirs for ours, theirs in layers.names().items()}
    is_masked = head.model == "ForMaskedLM"
    names |= {} if is_masked else {"out.weight": f"{layers.last}.weight"}
    return names if layers.bias is None else names | {"bias" if is_masked else "out.bias": layers.bias}


def renamed(names: Iterable[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Replace the modules in the names of tensors, or these names; our name -> the other."""
    found = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        found[name] = f"{modules[module]}.{kind}" if module else modules[name]
    return found
