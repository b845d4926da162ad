"""Tokens to vectors: one table per kind of id, summed, normalized, dropped out."""

from __future__ import annotations

from torch import Tensor, nn

from palm.backbone.packing import Packing
from palm.backbone.shape import Shape
from palm.contract import Tensors
from palm.errors import WiringError


class Embeddings(nn.Module):
    """The sum of a word's, its position's, its segment's (and task's) vectors."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tables = shape.tables
        for table in shape.tables:
            self.add_module(table.name, nn.Embedding(table.rows, shape.hidden_size))
        self.norm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_eps)
        self.dropout = nn.Dropout(shape.hidden_dropout_prob)

    @property
    def word_table(self) -> nn.Parameter:
        """The parameter that MLM shares, [vocabulary, width]."""
        weight = self.get_submodule(self.tables[0].name).weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, inputs: Tensors, packing: Packing) -> Tensor:
        """The packed tokens of `inputs`, [tokens, width].

        Raises:
            WiringError: if an id lies outside its table (on a CPU; a GPU cannot say which).
        """
        ids = {table.name: packing.pack(inputs[table.ids]) for table in self.tables}
        try:
            summed = sum(self.get_submodule(name)(rows) for name, rows in ids.items())
        except IndexError:
            raise WiringError("\n".join(self._outside(ids))) from None
        embedded: Tensor = self.dropout(self.norm(summed))
        return embedded

    def _outside(self, ids: Tensors) -> list[str]:
        return [
            f"{table.ids}: {int(ids[table.name][bad][0])} is outside 0..{table.rows - 1}; "
            f"the backbone has {table.setting} {table.rows}"
            for table in self.tables
            if (bad := (ids[table.name] < 0) | (ids[table.name] >= table.rows)).any()
        ]
