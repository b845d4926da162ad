"""The library's models with a head: an encoder, layers between, and a last linear layer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.transformers_config import library

FIRST_TOKEN = {"eurobert": "bos", "modernbert": "cls"}
"""Family -> the value of its `classifier_pooling` for the first token; others know nothing else."""

UNUSUAL = 7919
"""A number of labels that is no other size of a model, by which a classifier's last layer is found."""


def task_model(config: Any, head: str, **settings: Any) -> nn.Module | None:
    """Build the library's model with a head, which reads the first token where it reads one; None without.

    Args:
        config: of the encoder, in the library's form.
        head: end of the class's name, as `ForSequenceClassification`.
        settings: further settings of the configuration.
    """
    if (kind := getattr(library(), f"AutoModel{head}")._model_mapping.get(type(config), None)) is None:
        return None
    config = copy.deepcopy(config)
    if config.model_type in FIRST_TOKEN:
        config.classifier_pooling = FIRST_TOKEN[config.model_type]
    for name, value in settings.items():
        setattr(config, name, value)
    built: nn.Module = kind._from_config(config, dtype=torch.float32)
    return built


def head_layers(config: Any, head: str) -> tuple[str, list[str]] | None:
    """Name the last linear layer of the library's model with a head, and the parameters before it.

    Returns:
        Among those are neither the encoder's nor the last layer's; None where the library has no such model.
    """
    sizes = {"ForMaskedLM": config.vocab_size, "ForQuestionAnswering": 2}
    wanted = sizes.get(head, UNUSUAL)
    with torch.device("meta"):
        model = task_model(config, head, **({} if head == "ForMaskedLM" else {"num_labels": wanted}))
    if model is None:
        return None
    encoder = f"{model.base_model_prefix}."
    outside = [(name, part) for name, part in model.named_modules() if not name.startswith(encoder)]
    last = [name for name, part in outside if isinstance(part, nn.Linear) and part.out_features == wanted][-1]
    return last, [name for name in model.state_dict() if not name.startswith((encoder, f"{last}."))]


def sentence_layers(config: Any) -> tuple[nn.Module, SentenceLayers | None] | None:
    """Build an encoder and the layers that its classifier has above it; None without a classifier.

    Where the classifier has no layer of its own but the last, the encoder's pooler is what it reads.
    """
    found = head_layers(config, "ForSequenceClassification")
    if found is None:
        return None
    last, between = found
    model = task_model(config, "ForSequenceClassification")
    assert model is not None
    encoder = model.base_model
    assert isinstance(encoder, nn.Module)
    return encoder, SentenceLayers(model, last) if between else None


class SentenceLayers(nn.Module):
    """The layers of the library's classifier between the first token's vector and the last layer.

    Args:
        model: the classifier; what this module does not need is taken out of it.
        last: the name of its last layer.
    """

    def __init__(self, model: nn.Module, last: str) -> None:
        super().__init__()
        setattr(model, str(model.base_model_prefix), _Encoded())
        model.set_submodule(last, nn.Identity())
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0  # palm's heads have their own
        self.layers = model

    def forward(self, first: Tensor) -> Tensor:
        """Compute what the last layer reads, [batch, width], from first tokens, [batch, width]."""
        mask = torch.ones(first.shape[0], 1, dtype=torch.long, device=first.device)
        computed: Tensor = self.layers(inputs_embeds=first[:, None], attention_mask=mask).logits
        return computed


class _Encoded(nn.Module):
    """Stands in place of an encoder whose outputs are known."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Any:
        """Return them in the library's form."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=inputs_embeds)
