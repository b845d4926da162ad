"""Encoders of the `transformers` library, on packed tokens if their attention can be replaced."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.base import BACKBONES, SENTENCE
from palm.backbone.packing import Packing, Padded
from palm.backbone.token_encoder import Pooling, TokenEncoder, pooled
from palm.backbone.transformers_attention import NAME, register
from palm.backbone.transformers_config import PACKED, library, read_encoder_config
from palm.backbone.transformers_tasks import HeadLayers, head_layers
from palm.core.errors import ConfigError, WiringError
from palm.core.io import write_text
from palm.core.logging import logger
from palm.core.numerics.layers import CachedLinear
from palm.core.tensor_specs import Tensors


@BACKBONES.register("transformers")
class Transformers(TokenEncoder):
    """An encoder of the `transformers` library.

    Families in `PACKED` get one row with all real tokens, and palm's attention separates the texts. Others
    get the padded batch.

    Args:
        encoder_config_path: the encoder's `config.json`.
        pooling: pooling of tokens to a sentence embedding: the first token (`cls`, through the family's
            pooler or its classifier's layers, if any), or the mean or maximum of all tokens; `model` uses the
            pooling of the pretrained directory, or `cls` without one.

    Attributes:
        model: the library's module.
        sentence: the layers that the family's classifier has above the first token; None if there are none.
        is_packed: True if it runs on packed tokens.

    Raises:
        ConfigError: if the library is missing, or the file is not supported.
    """

    def __init__(self, encoder_config_path: Path, pooling: Pooling = "cls") -> None:
        super().__init__(pooling)
        self.config = read_encoder_config(Path(encoder_config_path))
        kind = self.config.model_type
        self.is_packed = kind in PACKED
        self.wants_even_lengths = not self.is_packed
        self._build(Path(encoder_config_path))
        if not self.is_packed:
            logger.info(
                "%s: its attention cannot be replaced; batches are padded, with rows of similar length", kind
            )
        parameters = inspect.signature(self.model.forward).parameters
        self._has_positions = "position_ids" in parameters and self.is_packed
        has_segments = "token_type_ids" in parameters and getattr(self.config, "type_vocab_size", 0) > 1
        # Variants of RoBERTa count positions from the padding's id + 1.
        counting = (m for m in self.model.modules() if hasattr(m, "create_position_ids_from_input_ids"))
        self._first_position = next((int(part.padding_idx) + 1 for part in counting), 0)
        longest = getattr(self.config, "max_position_embeddings", -1)
        self.max_tokens = longest - self._first_position if longest > 0 else None
        ids = ["token_ids", *(["segment_ids"] if has_segments else ())]
        self.declare(ids, self.config.hidden_size)

    def _build(self, path: Path) -> None:
        """Build the library's modules, including its classifier's layers above the first token.

        If the classifier has only its last layer, the encoder's pooler is used.
        """
        if self.is_packed:
            register()
            self.config._attn_implementation = NAME
        kind = library().AutoModel._model_mapping[type(self.config)]
        has_choice = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
        is_main_process = self.pooling == "cls"
        try:
            self.sentence = self.head_layers("ForSequenceClassification") if is_main_process else None
            options = {"add_pooling_layer": is_main_process and self.sentence is None} if has_choice else {}
            self.model: Any = kind._from_config(self.config, dtype=torch.float32, **options)
        except (ValueError, TypeError, AttributeError, KeyError, ZeroDivisionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"{path}: the library cannot build this encoder: {reason}") from error
        for name, part in list(self.model.named_modules()):
            if type(part) is nn.Linear and name:
                self.model.set_submodule(name, CachedLinear(part))

    def write_file(self, setting: str, target: Path) -> None:  # noqa: ARG002
        """Write the configuration without the fields that the library adds about itself and the machine."""
        content = self.config.to_diff_dict() | {"model_type": self.config.model_type}
        write_text(target, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def sizes(self) -> dict[str, Any]:
        """Return the settings that heads need, under palm's names."""
        rows, width = self.word_table.shape
        sizes = {"hidden_size": int(self.config.hidden_size), "vocab_size": int(rows)}
        return sizes if width == self.config.hidden_size else sizes | {"embedding_size": int(width)}

    def head_layers(self, model: str) -> HeadLayers | None:
        """Create the layers that the library's model has between the tokens and its last layer."""
        layers = head_layers(self.config, model)
        needed = layers is not None and (layers.has_parameters() or model == "ForMaskedLM")
        return layers.with_values() if layers and needed else None

    def set_pooling(self, pooling: str) -> None:
        super().set_pooling(pooling)
        if pooling != "cls":
            self.sentence = None
            if getattr(self.model, "pooler", None) is not None:
                self.model.pooler = None

    @property
    def word_table(self) -> Tensor:
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]

    def encoded(self, inputs: Tensors, packing: Packing, wanted: Collection[str]) -> Tensors:
        arguments = self._library_inputs(inputs, packing)
        arguments |= {"output_hidden_states": "word_embedding" in wanted, "return_dict": True}
        try:
            computed = self.model(**arguments)
        except IndexError:
            highest = int(inputs["token_ids"].max())
            raise WiringError(
                f"token_ids: {highest} is outside 0..{len(self.word_table) - 1}; use the vocabulary of this "
                "encoder"
            ) from None
        found = {"encoder_outputs": computed.last_hidden_state}
        if "word_embedding" in wanted:
            found["word_embedding"] = computed.hidden_states[0]
        pack = partial(torch.flatten, end_dim=1) if self.is_packed else packing.pack
        found = {name: pack(tokens) for name, tokens in found.items()}  # [tokens, width]
        if not set(SENTENCE).isdisjoint(wanted):
            sentence = pooled(found["encoder_outputs"], packing, self.pooling)
            found[SENTENCE[0]] = self._above_first(sentence) if self.pooling == "cls" else sentence
        return found

    def _above_first(self, first: Tensor) -> Tensor:
        """Compute sentence embeddings from first tokens, [batch, width], as the family's classifier does."""
        above = self.sentence or getattr(self.model, "pooler", None)
        if isinstance(above, nn.Linear):  # ALBERT's
            return self.model.pooler_activation(above(first))  # type: ignore[no-any-return]
        return first if above is None else above(first[:, None])

    def _library_inputs(self, inputs: Tensors, packing: Packing) -> dict[str, Any]:
        """Convert inputs to the library's arguments: packed tokens in one row, or the batch with its mask."""
        ids = inputs["token_ids"]
        given = {"token_type_ids": inputs["segment_ids"]} if "segment_ids" in self.inputs_attr else {}
        if not self.is_packed:
            mask = inputs["input_mask"]
            # Some families derive positions from the padding ids, so padding must have their own id.
            given["input_ids"] = ids.masked_fill(~mask, self.config.pad_token_id or 0)
            return given | {"attention_mask": mask.long()}
        given["input_ids"] = ids
        if self._has_positions:
            columns = torch.arange(ids.shape[1], device=ids.device)
            given["position_ids"] = (columns + self._first_position).expand(ids.shape)
        rows = ids.shape if isinstance(packing, Padded) else (1, -1)
        packed = {name: packing.pack(values).view(rows) for name, values in given.items()}
        return packed | {"palm_packing": packing}

    def checkpoint_activations(self) -> None:
        """Store only the input of each layer for the backward pass, and recompute the rest there."""
        if not self.model.supports_gradient_checkpointing:
            super().checkpoint_activations()
        self.model.gradient_checkpointing_enable({"use_reentrant": False})

    def parameter_layers(self) -> list[list[str]]:
        """List the parameters before the first layer, then those of each layer; later ones are omitted.

        Raises:
            ConfigError: if the family's layers are not in one list, or share parameters.
        """
        count = self.config.num_hidden_layers
        lists = (n for n, m in self.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count)
        if (layers := next(lists, None)) is None:
            return super().parameter_layers()
        names = [parameter for parameter, _ in self.named_parameters()]
        stages = [[p for p in names if p.startswith(f"{layers}.{k}.")] for k in range(count)]
        first = next((names.index(p) for stage in stages for p in stage), 0)
        return [names[:first], *stages]
