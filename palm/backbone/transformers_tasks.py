"""The library's models with a head: an encoder, intermediate layers and a last linear layer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.transformers_config import library

FIRST_TOKEN = {"eurobert": "bos", "modernbert": "cls"}
"""Family -> the value of its `classifier_pooling` for the first token; other families always use it."""

UNSUPPORTED_HEADS = {("big_bird", "ForQuestionAnswering")}
"""Families and heads that compute something else from tokens: BigBird's omits the tokens of the question."""

MARKER_SIZE = 7919
"""A number of labels that equals no other size of a model, to identify a classifier's last layer."""


def task_model(config: Any, head: str, **settings: Any) -> Any:
    """Build the library's model with a head, with first-token pooling in classifiers; None if there is none.

    Args:
        config: the encoder's configuration object of the library.
        head: suffix of the class name, such as `ForSequenceClassification`.
        settings: additional settings of the configuration.
    """
    if (kind := getattr(library(), f"AutoModel{head}")._model_mapping.get(type(config), None)) is None:
        return None
    config = copy.deepcopy(config)
    if config.model_type in FIRST_TOKEN:
        config.classifier_pooling = FIRST_TOKEN[config.model_type]
    for name, value in settings.items():
        setattr(config, name, value)
    return kind._from_config(config, dtype=torch.float32)


def head_layers(config: Any, head: str) -> HeadLayers | None:
    """Extract the layers of a head, on the meta device, from the library's model of a family.

    Args:
        config: the encoder's configuration object of the library.
        head: suffix of the class name.

    Returns:
        The layers; None if the library has no such model, or if it reads more than the tokens.
    """
    size = {"ForMaskedLM": config.vocab_size, "ForQuestionAnswering": 2}.get(head, MARKER_SIZE)
    settings = {} if head == "ForMaskedLM" else {"num_labels": size}
    with torch.device("meta"):
        if (config.model_type, head) in UNSUPPORTED_HEADS:
            return None
        if (model := task_model(config, head, **settings)) is None:
            return None
        encoder = f"{model.base_model_prefix}."
        sized = [name for name, part in model.named_modules() if getattr(part, "out_features", 0) == size]
        last = [name for name in sized if not name.startswith(encoder)]
        try:
            layers = HeadLayers(model, last[-1], head == "ForMaskedLM")
            if layers.has_parameters():
                layers(torch.empty(1, 1, config.hidden_size))
        except (AttributeError, IndexError):  # it reads other outputs of the encoder, such as LUKE's entities
            return None
    return layers


class HeadLayers(nn.Module):
    """The layers of the library's model between the encoder's tokens and the last linear layer.

    Args:
        model: the model; its encoder and last layer are replaced by placeholders.
        last: the name of its last layer.
        is_masked: True for masked language models, whose last layer has a bias and a word table.

    Attributes:
        layers: the remaining model.
        table: weights of the last layer, [vocab_size, width], if a masked language model does not share the
            encoder's word embeddings; otherwise None.
        names: parameter of a palm head with these layers as `above` -> parameter of the model.
    """

    def __init__(self, model: Any, last: str, is_masked: bool) -> None:
        super().__init__()
        layer = model.get_submodule(last)
        self.table = None
        weight = {"out.weight": f"{last}.weight"}
        ours = "bias" if is_masked else "out.bias"
        bias = {} if layer.bias is None else {ours: f"{last}.bias"}
        if is_masked:
            self.table = None if layer.weight is model.get_input_embeddings().weight else layer.weight
            weight = {} if self.table is None else {"above.table": f"{last}.weight"}
            parent_name = last.rpartition(".")[0]
            parent = model.get_submodule(parent_name)
            if getattr(parent, "bias", None) is not None:
                bias = bias or {ours: f"{parent_name}.bias"}
                del parent.bias
                parent.register_buffer("bias", torch.zeros(1), persistent=False)
        setattr(model, model.base_model_prefix, _GivenOutputs())
        model.set_submodule(last, _Duplicate() if layer.out_features == 2 else nn.Identity())
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0  # palm's heads have their own dropout
        self.layers = model
        self.names = {f"above.layers.{name}": name for name, _ in model.named_parameters()} | weight | bias

    def has_parameters(self) -> bool:
        """Check whether the layers have any parameters besides the last one's."""
        return any(name.startswith("above.") for name in self.names)

    def with_values(self) -> HeadLayers:
        """Initialize the layers randomly, as the library does."""
        self.to_empty(device="cpu")
        with torch.no_grad():
            for value in (*self.parameters(), *self.buffers()):
                value.zero_()
            for part in self.layers.children():
                part.apply(self.layers._init_weights)
            if self.table is not None:
                self.table.normal_(std=getattr(self.layers.config, "initializer_range", 0.02))
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the input of the last layer from tokens, [batch, seq, width].

        Returns:
            The same shape; in a classifier of texts, [batch, width] of the first tokens.
        """
        mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        read: Tensor = self.layers(inputs_embeds=tokens, attention_mask=mask)[0]
        return read


class _GivenOutputs(nn.Module):
    """Placeholder for an encoder that returns its inputs as outputs."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Any:
        """Wrap the tokens in the library's output class."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=inputs_embeds)


class _Duplicate(nn.Module):
    """Placeholder for a last layer whose two outputs are split."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens as both outputs."""
        return torch.stack((tokens, tokens), -1)
