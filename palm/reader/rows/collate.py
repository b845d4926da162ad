"""Collate rows of different lengths into tensors that are padded to the longest row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from palm.core.tensor_specs import Specs, Tensors, TensorSpec
from palm.reader.rows.rows import Numbers, Rows

_TOKENS = TensorSpec(("batch", "seq"), torch.long)

SEQUENCE_ATTR: Specs = {
    **dict.fromkeys(("token_ids", "position_ids", "segment_ids", "task_ids"), _TOKENS),
    "input_mask": TensorSpec(("batch", "seq"), torch.bool),
}
"""The tensors in every reader's batches."""

ONE_PER_ROW = TensorSpec(("batch",), torch.long)


def padded_batch(rows: Rows, indices: Sequence[int], pad_id: int, task_id: int) -> Tensors:
    """The tensors of `SEQUENCE_ATTR` for these rows, each [batch, seq].

    Args:
        rows: rows with the columns `token_ids` and `first_segment`.
        indices: indices of the batch's rows, in order.
        pad_id: the token id of padding, where all other fields are 0.
        task_id: the value of `task_ids` for real tokens.
    """
    tokens = [rows["token_ids"][index] for index in indices]
    first_segment = np.asarray([rows["first_segment"][index] for index in indices])
    lengths = np.asarray([len(row) for row in tokens])
    columns = np.arange(lengths.max())
    mask: npt.NDArray[np.bool_] = columns < lengths[:, None]  # [batch, seq]
    token_ids = np.full(mask.shape, pad_id, dtype=np.int64)
    # A mask is filled row by row from the left, in the order of the concatenated tokens.
    token_ids[mask] = np.concatenate(tokens)
    return {
        "token_ids": torch.from_numpy(token_ids),
        # Padding has position 0, which every position table contains.
        "position_ids": torch.from_numpy(columns * mask),
        "segment_ids": torch.from_numpy(((columns >= first_segment[:, None]) & mask).astype(np.int64)),
        "task_ids": torch.from_numpy(task_id * mask.astype(np.int64)),
        "input_mask": torch.from_numpy(mask),
    }


def padded(groups: Sequence[Numbers], fill: int, least: int = 0) -> torch.Tensor:
    """Pad the values of several rows on the right to one tensor, [rows, widest].

    Args:
        groups: the values of each row.
        fill: the padding value.
        least: the minimum width.
    """
    widest = max(least, *map(len, groups))
    return torch.from_numpy(
        np.stack([np.pad(group, (0, widest - len(group)), constant_values=fill) for group in groups])
    )
