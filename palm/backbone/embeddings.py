"""Token embeddings: one table per kind of id, summed, normalized, with dropout."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn

from palm.backbone.dropout import Dropout
from palm.backbone.packing import Packing
from palm.backbone.shape import Shape, Table
from palm.core.errors import WiringError
from palm.core.numerics.layers import layer_norm, linear
from palm.core.numerics.precision import compute_dtype
from palm.core.tensor_specs import Tensors


class Embeddings(nn.Module):
    """Sum of the embeddings of a token's word, position, segment (and task), projected to `hidden_size`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tables = shape.tables
        width = shape.embedding_width
        for table in shape.tables:
            self.add_module(table.name, nn.Embedding(table.rows, width))
        self.norm = nn.LayerNorm(width, eps=shape.layer_norm_eps)
        self.dropout = Dropout(shape.hidden_dropout_prob)
        same = width == shape.hidden_size
        self.projection = nn.Identity() if same else nn.Linear(width, shape.hidden_size)

    @property
    def word_table(self) -> nn.Parameter:
        """The word embeddings, shared with MLM, [vocabulary, width]."""
        weight = self.get_submodule(self.tables[0].name).weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, inputs: Tensors, packing: Packing) -> Tensor:
        """Embed the packed tokens of `inputs`, [tokens, width], in the dtype that the layers compute in.

        Args:
            inputs: ids, [batch, seq], by name.
            packing: layout of the tokens.

        Raises:
            WiringError: if an id is out of range (on a CPU only; a GPU does not report which one).
        """
        ids = {table.ids: packing.pack(inputs[table.ids]) for table in self.tables if table.ids is not None}
        try:
            vectors = (self._vectors(table, ids) for table in self.tables)
            summed = reduce(torch.add, vectors)
        except IndexError:
            raise WiringError(
                "\n".join(
                    f"{table.ids}: {int(ids[table.ids][bad][0])} is outside "
                    f"0..{table.rows - table.unused - 1}; the backbone has {table.setting} {table.rows}"
                    for table in self.tables
                    if table.ids is not None
                    and (bad := (ids[table.ids] < 0) | (ids[table.ids] >= table.rows - table.unused)).any()
                )
            ) from None
        embedded: Tensor = self.dropout(layer_norm(summed, self.norm).to(compute_dtype(summed)))
        if isinstance(self.projection, nn.Linear):
            embedded = linear(embedded, self.projection)
        return embedded

    def _vectors(self, table: Table, ids: Tensors) -> Tensor:
        """Look up packed ids in a table, [tokens, width]; [width] if all tokens have the same row."""
        embedding = self.get_submodule(table.name)
        assert isinstance(embedding, nn.Embedding)
        if table.ids is None:
            return embedding.weight[0]
        vectors: Tensor = embedding(ids[table.ids] + table.unused if table.unused else ids[table.ids])
        return vectors
