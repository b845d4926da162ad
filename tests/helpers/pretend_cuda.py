"""A pretend CUDA device: tensors that say `cuda:0`, compute on the CPU, and count the waits of the host.

It is imported before torch. After `install()`, code within `PretendDevice()` runs with `device: cuda`. It
raises on mixed devices and on what CUDA kernels refuse and CPU ones take. Nothing can be timed in it;
`torch.compile`, NCCL, FSDP, nested tensors and child processes do not run.
"""

# ruff: noqa: ARG001, E402, RUF059
from __future__ import annotations

import collections
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

GUARD = Path(__file__).with_name("cuda_guard.cpp")


def load_guard() -> None:
    """Register the device; it is compiled once for every version of torch.

    Raises:
        OSError: there is no C++ compiler.
    """
    assert "torch" not in sys.modules, "the device has to be registered before torch is imported"
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    key = hashlib.sha256(GUARD.read_bytes() + importlib.metadata.version("torch").encode()).hexdigest()
    guard = Path(tempfile.gettempdir()) / f"palm-tests-cuda-{key[:16]}.so"
    if not guard.is_file():
        own = guard.with_suffix(f".{os.getpid()}")
        includes = [f"-I{folder}/include", f"-I{folder}/include/torch/csrc/api/include"]
        command = ["g++", "-shared", "-fPIC", "-std=c++20", *includes, str(GUARD), "-o", str(own)]
        subprocess.run([*command, f"-L{folder}/lib", "-lc10", "-ltorch_cpu"], check=True)
        own.replace(guard)
    libraries = [
        *sorted((folder / "lib").glob("libgomp*")),
        folder / "lib/libc10.so",
        folder / "lib/libtorch_cpu.so",
    ]
    for library in [*libraries, guard]:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


load_guard()

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)
WAITS: collections.Counter[str] = collections.Counter()
"""Waits of the host, by kind and place, since somebody cleared it."""

OPERATORS = [0]
"""Number of operators that were sent to the device; views and allocations do not count."""

UNCOUNTED = {
    *("view", "t", "transpose", "expand", "slice", "select", "unsqueeze", "squeeze", "alias"),
    *("as_strided", "split", "unbind", "permute", "detach", "_unsafe_view", "split_with_sizes"),
    *("diagonal", "_reshape_alias", "lift_fresh", "unfold", "chunk", "empty", "empty_like"),
    *("new_empty", "empty_strided", "new_empty_strided"),
}
WAITING = {
    *("nonzero", "masked_select", "_unique2", "unique_consecutive", "equal", "_local_scalar_dense"),
    "bincount",
}
TAKES_CPU = {
    *("copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"),
    *("_foreach_copy_", "set_"),
}
TAKES_NO_CPU_SCALAR = {
    *("cat", "stack", "_fused_adamw_", "index_add", "index_copy", "index_select", "embedding"),
    "gather",
}


def wait(kind: str) -> None:
    """Count a wait at the innermost line of palm."""
    codes = (frame.f_code for frame, _ in traceback.walk_stack(None))
    inner = next((code for code in codes if f"{os.sep}palm{os.sep}" in code.co_filename), None)
    where = f"{Path(inner.co_filename).name}:{inner.co_name}" if inner else "?"
    WAITS[f"{kind} in {where}"] += 1


def require(condition: bool, message: str) -> None:
    """Refuse what a CUDA kernel refuses."""
    if not condition:
        raise RuntimeError(f"pretend CUDA kernel: {message}")


class CudaTensor(Tensor):
    """A tensor on the pretend device, around one on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> CudaTensor:
        made: CudaTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        wait("tolist")
        return self.inner.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return _tensor(data, dtype=dtype or self.dtype).to(DEVICE)

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"CudaTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        copied = CudaTensor(self.inner.clone())
        if getattr(self, "_is_param", False):
            copied._is_param = True
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("a tensor on the pretend device was pickled")


class PretendDevice(TorchDispatchMode):
    """Within it, factories and copies reach the device; in this thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operator on the CPU, under the rules of the device."""
    name = func._schema.name.split("::")[1]
    tensors = [leaf for leaf in leaves_of((args, *kwargs.values())) if isinstance(leaf, Tensor)]
    on_device = any(isinstance(tensor, CudaTensor) for tensor in tensors)
    target = torch.device(kwargs.get("device") or "cpu")
    if kwargs.get("pin_memory"):
        return _pinned(func(*args, **{**kwargs, "pin_memory": False}))
    if not on_device and target.type != "cuda":
        return func(*args, **kwargs)
    if name in KERNELS:
        OPERATORS[0] += 1
        return KERNELS[name](*args, **kwargs)
    if name in ("_to_copy", "copy_"):
        return _copied(func, name, args, kwargs)
    OPERATORS[0] += name not in UNCOUNTED
    _count_waits(name, args, kwargs)
    _check_rules(name, args, tensors)
    known = {id(t.inner): t for t in tensors if isinstance(t, CudaTensor)}
    inner_args = mapped(unwrapped, args)
    inner_kwargs = {key: mapped(unwrapped, value) for key, value in kwargs.items()}
    inner_kwargs |= {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        # What an operator changes in place, it gives back as the same object.
        return known[id(value)] if id(value) in known else CudaTensor(value)

    return mapped(wrapped, func(*inner_args, **inner_kwargs))


def leaves_of(values: Sequence[Any]) -> Iterator[Any]:
    """What lists and tuples have in them; torch's pytree takes ten times as long for an operator."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves_of(value)
        else:
            yield value


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change every leaf of an operator's arguments or results."""
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, each) for each in value)
    return change(value)


def unwrapped(value: Any) -> Any:
    """Return the tensor on the CPU."""
    return value.inner if isinstance(value, CudaTensor) else value


def _pinned(tensor: Tensor) -> Tensor:
    tensor.pretends_pinned = True  # type: ignore[attr-defined]
    return tensor


def _copied(func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy between host and device; without a wait only where the copy is not blocking, in pinned memory."""
    OPERATORS[0] += 1
    if name == "copy_":
        to, source = args[:2]
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        _count_copy(source, isinstance(to, CudaTensor), non_blocking, to)
        (to.inner if isinstance(to, CudaTensor) else to).copy_(
            source.inner if isinstance(source, CudaTensor) else source
        )
        return to
    (source,) = args
    to_device = torch.device(kwargs.get("device") or source.device).type == "cuda"
    options = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking")}
    made = func(source.inner if isinstance(source, CudaTensor) else source, **options)
    _count_copy(source, to_device, kwargs.get("non_blocking", False), None)
    return CudaTensor(made.clone() if made is source else made) if to_device else made


def _count_copy(source: Tensor, to_device: bool, non_blocking: bool, to: Tensor | None) -> None:
    from_device = isinstance(source, CudaTensor)
    if from_device == to_device:
        return
    host = to if from_device else source
    if not non_blocking or not getattr(host, "pretends_pinned", False):
        wait("copy to the host" if from_device else "copy to the device")


def _count_waits(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    if name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        wait(name)
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        for index in args[1]:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                wait(f"{name} by a mask")
            elif index is not None and not isinstance(index, CudaTensor):
                wait(f"{name} by places on the host")


def _check_rules(name: str, args: Any, tensors: Sequence[Tensor]) -> None:
    if name == "native_layer_norm" and args[2] is not None:
        require(
            args[0].dtype == args[2].dtype, f"layer norm of {args[0].dtype} with a weight in {args[2].dtype}"
        )
    if name == "_fused_adamw_":
        every = [tensor for some in args[:6] for tensor in some]
        require(
            all(isinstance(t, CudaTensor) for t in every), "fused AdamW with tensors or counters on the CPU"
        )
    if name in TAKES_CPU or name.startswith("_foreach"):
        return
    for tensor in tensors:
        alone = tensor.dim() == 0 and name not in TAKES_NO_CPU_SCALAR
        require(
            isinstance(tensor, CudaTensor) or alone, f"{name}: a tensor {tuple(tensor.shape)} is on the CPU"
        )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Sequence[Tensor],
    dropout: float,
    seed: int,
    sides: Sequence[int],
) -> tuple[Tensor, Tensor, list[tuple[slice, slice, Tensor, Tensor]]]:
    """Compute attention within packed sequences by its definition; rows after them are not numbers.

    Returns:
        The gathered values, the logarithms of the sums, and per sequence what its gradients need.
    """
    draw = torch.Generator().manual_seed(seed)
    gathered = torch.full_like(query, math.nan)
    sums = torch.zeros(query.shape[1], query.shape[0])
    parts = []
    for own, other in zip(*(pairwise(end.tolist()) for end in ends), strict=True):
        q = slice(*own)
        k = slice(*other)
        scores = torch.einsum("qhd,khd->hqk", query[q].float(), key[k].float()) / math.sqrt(query.shape[-1])
        distance = torch.arange(k.stop - k.start) - torch.arange(q.stop - q.start)[:, None]
        for side, far in zip(sides, (-distance, distance), strict=True):
            scores = scores.masked_fill(far > side, -math.inf) if side >= 0 else scores
        sums[:, q] = scores.logsumexp(-1)
        kept = (torch.rand(scores.shape, generator=draw) >= dropout).float() / (1 - dropout)
        weights = scores.softmax(-1)
        parts.append((q, k, weights, kept))
        gathered[q] = torch.einsum("hqk,khd->qhd", weights * kept, value[k].float()).to(query.dtype)
    return gathered, sums, parts


def attention_gradients(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, parts: Any
) -> list[Tensor]:
    """The gradients of `attention` with respect to queries, keys and values."""
    gradients = [torch.full_like(tensor, math.nan) for tensor in (query, key, value)]
    scale = 1 / math.sqrt(query.shape[-1])
    for q, k, weights, kept in parts:
        wanted = gradient[q].float()
        of_weights = torch.einsum("qhd,khd->hqk", wanted, value[k].float()) * kept
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
        gradients[0][q] = torch.einsum("hqk,khd->qhd", of_scores, key[k].float()).to(query.dtype)
        gradients[1][k] = torch.einsum("hqk,qhd->khd", of_scores, query[q].float()).to(query.dtype)
        gradients[2][k] = torch.einsum("hqk,qhd->khd", weights * kept, wanted).to(query.dtype)
    return gradients


def _check_attention(tensors: Sequence[Any], ends: Sequence[Any], longest: Sequence[int]) -> None:
    require(all(isinstance(t, CudaTensor) for t in [*tensors, *ends]), "attention: a tensor is on the CPU")
    require(len({t.dtype for t in tensors}) == 1, "attention: several dtypes")
    require(all(t.stride(-1) == 1 for t in tensors), "attention: the last dimension is not contiguous")
    for end, most in zip(ends, longest, strict=True):
        require(end.dtype == torch.int32 and end.is_contiguous(), "attention: ends of sequences")
        require(int(end.inner.diff().max()) <= most, "attention: a sequence is longer than max_seqlen")


def _flash(
    q: Any, k: Any, v: Any, of_q: Any, of_k: Any, most_q: int, most_k: int, p: float, *_: Any, **more: Any
) -> Any:
    _check_attention([q, k, v], [of_q, of_k], [most_q, most_k])
    require(q.dtype in (torch.bfloat16, torch.float16), f"flash attention of {q.dtype}")
    require(q.shape[-1] % 8 == 0 and q.shape[-1] <= 256, f"flash attention of heads of {q.shape[-1]}")
    seed = int(torch.randint(2**31, ()))
    gathered, sums, _ = attention(q.inner, k.inner, v.inner, [of_q.inner, of_k.inner], p, seed, _sides(more))
    state = CudaTensor(torch.tensor([seed, 0]))
    return (
        CudaTensor(gathered),
        CudaTensor(sums),
        state,
        CudaTensor(torch.zeros(())),
        CudaTensor(torch.zeros(0)),
    )


def _flash_backward(
    g: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, of_q: Any, of_k: Any, *rest: Any, **more: Any
) -> Any:
    most_q, most_k, p, _, state, _ = rest
    _check_attention([g, q, k, v, out], [of_q, of_k], [most_q, most_k])
    seed = int(state.inner[0])
    ends = [of_q.inner, of_k.inner]
    _, _, parts = attention(q.inner, k.inner, v.inner, ends, p, seed, _sides(more))
    return tuple(map(CudaTensor, attention_gradients(g.inner, q.inner, k.inner, v.inner, parts)))


def _sides(options: dict[str, Any]) -> list[int]:
    sides = [options.get(f"window_size_{side}") for side in ("left", "right")]
    return [-1 if side is None else side for side in sides]


def _efficient(
    q: Any, k: Any, v: Any, bias: Any, of_q: Any, of_k: Any, most_q: int, most_k: int, p: float, *rest: Any
) -> Any:
    _check_attention([q, k, v], [of_q, of_k], [most_q, most_k])
    require(
        bias is None and q.dim() == 4 and len(q) == 1,
        "memory-efficient attention of packed rows is one batch",
    )
    seed = int(torch.randint(2**31, ()))
    parts = [part.inner[0] for part in (q, k, v)]
    gathered, sums, _ = attention(*parts, [of_q.inner, of_k.inner], p, seed, (-1, -1))  # type: ignore[misc]
    return CudaTensor(gathered[None]), CudaTensor(sums), torch.tensor(seed), torch.tensor(0), most_q, most_k


def _efficient_backward(
    g: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, of_q: Any, of_k: Any, *rest: Any
) -> Any:
    most_q, most_k, sums, p, seed, *_ = rest
    _check_attention([g, q, k, v, out], [of_q, of_k], [most_q, most_k])
    require(most_q <= q.shape[1] and most_k <= k.shape[1], f"max_seqlen {most_q}, {most_k} above the tokens")
    inner = [part.inner[0] for part in (q, k, v)]
    _, _, parts = attention(*inner, [of_q.inner, of_k.inner], p, int(seed), (-1, -1))  # type: ignore[misc]
    gradients = attention_gradients(g.inner[0], *inner, parts)  # type: ignore[misc]
    return *(CudaTensor(gradient[None]) for gradient in gradients), None


KERNELS: dict[str, Callable[..., Any]] = {
    "_flash_attention_forward": _flash,
    "_flash_attention_backward": _flash_backward,
    "_efficient_attention_forward": _efficient,
    "_efficient_attention_backward": _efficient_backward,
}


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


_tensor = torch.tensor


def install() -> None:
    """Patch what of torch asks the driver."""
    answers = {
        "is_available": True,
        "_lazy_init": None,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "is_bf16_supported": True,
        "get_device_name": "pretend GPU",
        "get_device_capability": (9, 0),
        "get_device_properties": types.SimpleNamespace(
            name="pretend GPU", major=9, minor=0, total_memory=80 << 30
        ),
        "max_memory_allocated": 1 << 30,
        "memory_allocated": 1 << 30,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "is_current_stream_capturing": False,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    torch.cuda.synchronize = lambda *_: wait("synchronize")
    torch.cuda.Event = Event  # type: ignore[assignment, misc]
    torch.inference_mode = lambda *_, **__: torch.no_grad()  # type: ignore[assignment, misc]
    torch.Tensor.pin_memory = lambda self, *_: _pinned(self.clone())  # type: ignore[method-assign, assignment]
    torch.__future__.set_swap_module_params_on_conversion(True)
    plain_to = torch.Tensor.to

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        numbered = [_numbered(value) for value in args]
        return plain_to(self, *numbered, **{name: _numbered(value) for name, value in kwargs.items()})

    def tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        made = _tensor(data, **kwargs)
        return made.to(DEVICE) if device is not None and torch.device(device).type == "cuda" else made

    torch.Tensor.to = to  # type: ignore[method-assign, assignment]
    torch.tensor = tensor  # type: ignore[assignment]


def _numbered(value: Any) -> Any:
    """`cuda` as `cuda:0`, for which torch would ask the driver."""
    is_device = isinstance(value, torch.device) and value.type == "cuda"
    return DEVICE if is_device or value == "cuda" else value
