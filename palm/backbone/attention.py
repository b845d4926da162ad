"""Self-attention of palm's encoder: padded, and over packed rows."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone.cpu_kernels import MAX_GROUPED, attend_by_groups, product
from palm.backbone.packing import Packing, Padded, Scope
from palm.core.layers import cached_product, linear


class SelfAttention(nn.Module):
    """Scaled dot-product attention between the tokens of each sequence (Vaswani et al., 2017).

    Args:
        width: width of the tokens, in and out.
        num_heads: number of heads; `width` is a multiple of it.
        dropout_prob: probability of zeroing an attention weight while training.
    """

    def __init__(self, width: int, num_heads: int, dropout_prob: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout_prob = dropout_prob
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, tokens: Tensor, packing: Packing, first_only: bool) -> Tensor:
        """Compute attention within each sequence.

        Args:
            tokens: packed, [tokens, width].
            packing: layout of the tokens.
            first_only: compute only the first token of every row.

        Returns:
            [tokens, width], or [batch, width] if `first_only`.
        """
        asking = tokens[packing.first] if first_only else tokens
        joint = None if first_only else cached_product((self.query, self.key, self.value), tokens.dtype)
        if joint is not None:
            # One product if the joined matrix is cached; training would have to join it at every step.
            parts = joint(tokens).chunk(3, dim=-1)
        else:
            parts = (linear(asking, self.query), linear(tokens, self.key), linear(tokens, self.value))
        query, key, value = (part.view(part.shape[0], self.num_heads, -1) for part in parts)
        dropout_prob = self.dropout_prob if self.training else 0.0
        context = attention(query, key, value, packing, dropout_prob, first_only=first_only)
        return linear(context.flatten(1), self.output)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    dropout_prob: float,
    *,
    first_only: bool = False,
    window: int | None = None,
) -> Tensor:
    """Compute attention between the tokens of each row of a layout, padded or packed.

    Args:
        query: [tokens, heads, head_dim]; [batch, heads, head_dim] if `first_only`.
        key: [tokens, heads, head_dim].
        value: [tokens, heads, head_dim].
        packing: layout of the tokens.
        dropout_prob: probability of zeroing an attention weight.
        first_only: the queries are those of every row's first token.
        window: maximum distance between query and key, in tokens; None for no limit.

    Returns:
        The shape of `query`.
    """
    if isinstance(packing, Padded):
        return attend_in_graph(query, key, value, packing.keys_bias, window)
    return attend(query, key, value, packing.scope(first_only, window), dropout_prob)


def attend(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """Compute softmax(query · key / sqrt(head_dim)) · value over the keys that each query sees.

    Args:
        query: [queries, heads, head_dim]; on a CPU, results of spare queries after the scope are zero.
        key: [tokens, heads, head_dim].
        value: [tokens, heads, head_dim].
        scope: the keys that each query sees.
        dropout_prob: probability of zeroing an attention weight.

    Returns:
        [queries, heads, head_dim].
    """
    if query.is_cuda:
        on_gpu = attend_packed if fits(query, scope) else attend_padded
        return on_gpu(query, key, value, scope, dropout_prob)
    # torch's fused kernel is 1.2 times as fast as plain products on a CPU, but its backward pass in bfloat16
    # is 10 to 12 times slower at 80 tokens, 2 to 3 times at 384, and it also computes keys outside a window.
    if dropout_prob or torch.is_grad_enabled() or scope.window is not None:
        return attend_by_groups(query, key, value, scope, dropout_prob)
    return attend_without_gradients(query, key, value, scope)


def attend_padded(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """Compute `attend` on padded sequences, for cases that no kernel for packed ones supports."""
    places, _ = scope.queries.padded()
    key_places, mask = scope.keys.padded()
    q = query[places].transpose(1, 2)  # [sequences, heads, queries, head_dim]
    k = key[key_places].transpose(1, 2)
    v = value[key_places].transpose(1, 2)
    visible = mask[:, None, None, :]
    if scope.window is not None:
        columns = torch.arange(mask.shape[1], device=mask.device)
        distance = (columns[: q.shape[2], None] - columns).abs()
        # Padding sees itself: the softmax over no keys would be NaN, which the next layer would spread.
        visible = (distance <= scope.window) & (visible | (distance == 0))
    attended = F.scaled_dot_product_attention(q, k, v, visible, dropout_prob).transpose(1, 2)
    return attended.flatten(0, 1).index_select(0, scope.queries.padded_places(len(query)))


def attend_in_graph(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, window: int | None) -> Tensor:
    """Compute `attend` on padded rows with plain products and a softmax, which export to any graph format.

    The exported graph of torch's own kernel creates a mask and checks for NaN in every layer; onnxruntime
    spent a third of its time on that in int8.

    Args:
        query: [batch * queries, heads, head_dim].
        key: [batch * seq, heads, head_dim].
        value: [batch * seq, heads, head_dim].
        bias: bias of the scores of keys, `Padded.keys_bias`, [batch, 1, 1, seq].
        window: maximum distance between query and key, in columns; None for no limit.

    Returns:
        [batch * queries, heads, head_dim].
    """
    rows = (part.view(bias.shape[0], -1, *part.shape[1:]) for part in (query, key, value))
    q, k, v = (part.transpose(1, 2) for part in rows)  # [batch, heads, queries or seq, head_dim]
    if window is not None:
        places = torch.arange(bias.shape[-1], device=bias.device)
        bias = bias - 1e9 * ((places[: q.shape[2], None] - places).abs() > window)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias  # [batch, heads, queries, seq]
    output: Tensor = scores.softmax(-1) @ v
    return output.transpose(1, 2).flatten(0, 1)


def attend_without_gradients(query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> Tensor:
    """Compute `attend` on a CPU without dropout and window, with torch's fused kernel if it is fast.

    Neighbours of the same length are computed in one call, with bit-identical results.
    """
    output = torch.empty_like(query)
    output[scope.queries.bounds[-1][1] :] = 0  # spare tokens
    pairs = zip(scope.queries.bounds, scope.keys.bounds, strict=True)
    for _, group in itertools.groupby(pairs, lambda pair: [stop - start for start, stop in pair]):
        same = list(group)
        first_queries, first_keys = same[0]
        last_queries, last_keys = same[-1]
        queries = slice(first_queries[0], last_queries[1])
        keys = slice(first_keys[0], last_keys[1])
        parts = (query[queries], key[keys], value[keys])
        q, k, v = (part.view(len(same), -1, *part.shape[1:]).transpose(1, 2) for part in parts)
        is_short = q.shape[2] <= MAX_GROUPED
        is_fast = q.dtype != torch.bfloat16 or is_short or torch.cpu._is_amx_tile_supported()
        attended = (F.scaled_dot_product_attention if is_fast else _attend_row_by_row)(q, k, v)
        output[queries] = attended.transpose(1, 2).flatten(0, 1)
    return output


def _attend_row_by_row(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Replace torch's kernel by plain products for each row, [rows, heads, tokens, head_dim].

    In bfloat16 without AMX (Zen 5), 6 heads of 97 to 384 tokens take 0.44 to 0.60 of the kernel's time.
    """
    output = torch.empty_like(query)
    for row, parts in enumerate(zip(query, key, value, strict=True)):
        q, k, v = (part.contiguous() for part in parts)
        output[row] = product(product(q, k.mT, q.shape[-1] ** -0.5).softmax(-1), v, 1.0)
    return output


def attend_packed(query: Tensor, key: Tensor, value: Tensor, scope: Scope, dropout_prob: float) -> Tensor:
    """Compute `attend` with flash attention, for queries that `fits` allows, with the same arguments."""
    sides = ("window_size_left", "window_size_right")
    window = {} if scope.window is None else dict.fromkeys(sides, scope.window)
    ends = (scope.queries.offsets, scope.keys.offsets, scope.queries.longest, scope.keys.longest)
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, *ends, dropout_prob, is_causal=False, return_debug_mask=False, **window
    )[0]
    return output


def fits(query: Tensor, scope: Scope) -> bool:
    """Check whether flash attention supports such queries: half precision, rows of whole 16 bytes.

    It supports heads of at most 256 features, on GPUs from Ampere on. With fewer queries than keys, it aligns
    the window at the end, so a window on only the first tokens is not supported.
    """
    width = query.shape[-1]
    if query.dtype not in (torch.bfloat16, torch.float16) or not has_flash_attention(query.device):
        return False
    return width % 8 == 0 and width <= 256 and (scope.window is None or scope.queries is scope.keys)


def has_flash_attention(device: torch.device) -> bool:
    """Check that the device is not a GPU older than Ampere, for which torch has no such kernel."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)
