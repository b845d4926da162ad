"""softmax(query · key / sqrt(head_dim)) · value within each of several packed sequences, on CPU and GPU."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from palm.backbone.block_attention import attend_by_blocks
from palm.backbone.packed_kernels import attend_packed, fits
from palm.backbone.packing import Scope, Sequences


def attend(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """What every query gathers from the keys that it sees.

    Args:
        query: [queries, heads, head_dim]; spare ones may follow the last sequence, and gather zeros.
        key: [tokens, heads, head_dim].
        value: [tokens, heads, head_dim].
        scope: which keys a query sees.
        dropout_prob: probability of zeroing an attention weight.

    Returns:
        [queries, heads, head_dim].
    """
    if query.is_cuda:
        return attend_at_once(query, key, value, scope, dropout_prob)
    # torch's fused kernel is 1.2 times as fast as plain products on a CPU, but its backward in bfloat16 is 10
    # to 12 times slower at 80 tokens, 2 to 3 times at 384; and it computes all of what a window leaves out.
    if dropout_prob or torch.is_grad_enabled() or scope.window is not None:
        return attend_by_blocks(query, key, value, scope, dropout_prob)
    return attend_without_gradients(query, key, value, scope)


def attend_padded(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, window: int | None, dropout_prob: float = 0.0
) -> Tensor:
    """`attend` in rows of one length, looking only where `mask` is True.

    Args:
        query: [batch * queries, heads, head_dim].
        key: [batch * seq, heads, head_dim].
        value: [batch * seq, heads, head_dim].
        mask: bool[batch, seq], at least one True per row.
        window: as in `Scope`, counted in columns.
        dropout_prob: probability of zeroing an attention weight.

    Returns:
        [batch * queries, heads, head_dim].
    """
    rows = (part.view(mask.shape[0], -1, *part.shape[1:]) for part in (query, key, value))
    q, k, v = (part.transpose(1, 2) for part in rows)  # [batch, heads, queries or seq, head_dim]
    visible = mask[:, None, None, :]
    if window is not None:
        places = torch.arange(mask.shape[1], device=mask.device)
        distance = (places[: q.shape[2], None] - places).abs()
        # Padding sees itself: the softmax over no key at all is not a number, and the next layer spreads it.
        visible = (distance <= window) & (visible | (distance == 0))
    return F.scaled_dot_product_attention(q, k, v, visible, dropout_prob).transpose(1, 2).flatten(0, 1)


def attend_in_graph(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, window: int | None) -> Tensor:
    """`attend` in rows of one length, as products and a softmax that any program that reads graphs has.

    torch's own kernel becomes a graph that makes a mask and looks for what is no number in every layer:
    onnxruntime took a third of its time for it in int8.

    Args:
        query: [batch * queries, heads, head_dim].
        key: [batch * seq, heads, head_dim].
        value: [batch * seq, heads, head_dim].
        bias: added to the scores of keys, `Padded.keys_bias`, [batch, 1, 1, seq].
        window: as in `Scope`, counted in columns.

    Returns:
        [batch * queries, heads, head_dim].
    """
    rows = (part.view(bias.shape[0], -1, *part.shape[1:]) for part in (query, key, value))
    q, k, v = (part.transpose(1, 2) for part in rows)  # [batch, heads, queries or seq, head_dim]
    if window is not None:
        places = torch.arange(bias.shape[-1], device=bias.device)
        bias = bias - 1e9 * ((places[: q.shape[2], None] - places).abs() > window)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias  # [batch, heads, queries, seq]
    gathered: Tensor = scores.softmax(-1) @ v
    return gathered.transpose(1, 2).flatten(0, 1)


def attend_at_once(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """`attend` with one kernel for all sequences, for a GPU.

    `varlen_attn` knows neither dropout nor float32, and what it gives spare tokens is perhaps not a number;
    with any of these, `attend_packed` calls the kernels. What does not fit there goes through nested tensors,
    which cost the host 9 ms a layer, and know no window, for which sequences are padded. A window counts from
    the end where there are fewer queries than keys, so it is not asked of a kernel for first tokens alone.
    """
    queries, keys, window = scope.queries, scope.keys, scope.window
    has_spare = keys.tokens is not None and keys.tokens < len(key)
    varlen_attn = varlen_kernel(window is not None)
    is_plain = query.dtype in (torch.bfloat16, torch.float16) and not dropout_prob and not has_spare
    if varlen_attn and is_plain and (window is None or queries is keys):
        options = {} if window is None else {"window_size": (window, window)}
        ends = (queries.offsets, keys.offsets, queries.longest, keys.longest)
        gathered: Tensor = varlen_attn(query, key, value, *ends, **options)
        return gathered
    if query.device.type != "cpu" and fits(query, scope):
        return attend_packed(query, key, value, scope, dropout_prob)
    if has_spare:
        kept = query[: queries.tokens]  # all of them where they are first tokens
        gathered = attend_at_once(kept, key[: keys.tokens], value[: keys.tokens], scope, dropout_prob)
        return F.pad(gathered, (0, 0, 0, 0, 0, len(query) - len(kept)))
    if window is not None:
        (places, real), (key_places, mask) = queries.padded(), keys.padded()
        q, (k, v) = query[places.flatten()], (part[key_places.flatten()] for part in (key, value))
        return attend_padded(q, k, v, mask, window, dropout_prob)[real.flatten()]
    q, k, v = _nested(query, queries), _nested(key, keys), _nested(value, keys)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_prob).transpose(1, 2).values()


@functools.cache
def varlen_kernel(windowed: bool = False) -> Callable[..., Any] | None:
    """torch's kernel for packed sequences; None before torch 2.10, or where it knows no window.

    Importing it takes a second, so it is not done above.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    has_window = "window_size" in inspect.signature(varlen_attn).parameters
    return varlen_attn if has_window or not windowed else None


def _nested(packed: Tensor, rows: Sequences) -> Tensor:
    """[sequences, heads, tokens of each, head_dim]."""
    made: Tensor = torch.nested.nested_tensor_from_jagged(
        packed, rows.offsets, min_seqlen=1, max_seqlen=rows.longest
    )
    return made.transpose(1, 2)


def attend_without_gradients(query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> Tensor:
    """`attend` with torch's fused kernel, on a CPU, without dropout and window.

    Neighbours of one length go together; that changes no bit of what the kernel computes for each.
    """
    gathered = torch.empty_like(query)
    gathered[scope.queries.bounds[-1][1] :] = 0
    pairs = zip(scope.queries.bounds, scope.keys.bounds, strict=True)
    for _, group in itertools.groupby(pairs, lambda pair: [stop - start for start, stop in pair]):
        same = list(group)
        (first_queries, first_keys), (last_queries, last_keys) = same[0], same[-1]
        queries, keys = slice(first_queries[0], last_queries[1]), slice(first_keys[0], last_keys[1])
        parts = (query[queries], key[keys], value[keys])
        q, k, v = (part.view(len(same), -1, *part.shape[1:]).transpose(1, 2) for part in parts)
        gathered[queries] = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)
    return gathered
