"""The library's models with a head: an encoder, layers between, and a last linear layer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.transformers_config import library

FIRST_TOKEN = {"eurobert": "bos", "modernbert": "cls"}
"""Family -> the value of its `classifier_pooling` for the first token; others know nothing else."""

UNLIKE = {("big_bird", "ForQuestionAnswering")}
"""Families and heads that compute something else from tokens: BigBird's leaves out those of the question."""

UNUSUAL = 7919
"""A number of labels that is no other size of a model, by which a classifier's last layer is found."""


def task_model(config: Any, head: str, **settings: Any) -> Any:
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
    return kind._from_config(config, dtype=torch.float32)


def head_layers(config: Any, head: str) -> HeadLayers | None:
    """Take the layers of a head, on the meta device, from the library's model of a family.

    Args:
        config: of the encoder, in the library's form.
        head: end of the class's name.

    Returns:
        None where the library has no such model, or one that does not compute its outputs of tokens alone.
    """
    size = {"ForMaskedLM": config.vocab_size, "ForQuestionAnswering": 2}.get(head, UNUSUAL)
    settings = {} if head == "ForMaskedLM" else {"num_labels": size}
    with torch.device("meta"):
        model = None if (config.model_type, head) in UNLIKE else task_model(config, head, **settings)
        if model is None:
            return None
        encoder = f"{model.base_model_prefix}."
        sized = [name for name, part in model.named_modules() if getattr(part, "out_features", 0) == size]
        last = [name for name in sized if not name.startswith(encoder)]
        try:
            layers = HeadLayers(model, last[-1], head == "ForMaskedLM")
            if layers.has_parameters():
                layers(torch.empty(1, 1, config.hidden_size))
        except (AttributeError, IndexError):  # it reads more of the encoder, as LUKE's entities
            return None
    return layers


class HeadLayers(nn.Module):
    """The layers of the library's model between the encoder's tokens and the last linear layer.

    Args:
        model: the model; what this module does not need is taken out of it.
        last: the name of its last layer.
        is_masked: True if it predicts masked words, by a bias of its own and a table.

    Attributes:
        layers: what is left of the model.
        table: weights of the last layer, [vocab_size, width], where a model for masked words has other ones
            than the encoder's table; otherwise None.
        names: the parameters of a head of palm's with these layers, `above.` them -> those of the model.
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
            place = last.rpartition(".")[0]
            around = model.get_submodule(place)
            if getattr(around, "bias", None) is not None:
                bias = bias or {ours: f"{place}.bias"}
                del around.bias
                around.register_buffer("bias", torch.zeros(1), persistent=False)
        setattr(model, model.base_model_prefix, _Encoded())
        model.set_submodule(last, _Twice() if layer.out_features == 2 else nn.Identity())
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0  # palm's heads have their own
        self.layers = model
        self.names = {f"above.layers.{name}": name for name, _ in model.named_parameters()} | weight | bias

    def has_parameters(self) -> bool:
        """Tell whether they compute anything."""
        return any(name.startswith("above.") for name in self.names)

    def with_values(self) -> HeadLayers:
        """Give the layers the random weights that the library gives them."""
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
        """Compute what the last layer reads from tokens, [batch, seq, width].

        Returns:
            The same shape, or [batch, width] of the first tokens in a classifier of texts.
        """
        mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        read: Tensor = self.layers(inputs_embeds=tokens, attention_mask=mask)[0]
        return read


class _Encoded(nn.Module):
    """Stands in place of an encoder whose outputs are known."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Any:
        """Return them in the library's form."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=inputs_embeds)


class _Twice(nn.Module):
    """Stands in place of a last layer whose two outputs are split."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the tokens as both."""
        return torch.stack((tokens, tokens), -1)
