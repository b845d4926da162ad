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


def library_names(config: Any, head: HeadLayout) -> tuple[dict[str, str], list[str]] | None:
    """Name a head's tensors in the library's model, and what that has above the encoder and palm has not.

    Args:
        config: of the encoder, in the library's form.
        head: of palm's head.

    Returns:
        The name of every tensor of ours there, and those parameters; None without such a model.
    """
    if (found := head_layers(config, head.model)) is None:
        return None
    last, between = found
    if head.model != "ForMaskedLM":
        names = {f"out.{kind}": f"{last}.{kind}" for kind in ("weight", "bias")}
        return names, [] if head.reads_pooler else between
    names = {"bias": f"{last}.bias"}
    lacking = []
    for theirs in between:
        module, _, kind = theirs.rpartition(".")
        if module == last.rpartition(".")[0] and kind == "bias":
            continue  # tied to that of the last layer
        ours = f"{'norm' if 'norm' in module.lower() else 'transform'}.{kind}"
        if names.setdefault(ours, theirs) != theirs:
            lacking.append(theirs)
    return names, lacking if {"transform.weight", "norm.weight"} <= names.keys() else [last]


def renamed(names: Iterable[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Replace the modules in the names of tensors, or these names; our name -> the other."""
    found = {}
    for name in names:
        module, _, kind = name.rpartition(".")
        found[name] = f"{modules[module]}.{kind}" if module else modules[name]
    return found
