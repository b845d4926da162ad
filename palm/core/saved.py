"""Tensors: their declared shapes, and components as they are saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from palm.core.component import Component, Registry, path_settings
from palm.core.device import within_weights
from palm.core.errors import ConfigError, StorageError, shortened
from palm.core.io import checksum, make_folder, resolve_inside, wrap_read_errors, wrap_write_errors
from palm.core.layers import skip_init

Tensors = dict[str, Tensor]
"""A batch, features or outputs: name in PALM's vocabulary -> tensor."""


NO_LABEL = -100
"""Label id of rows without a label and of tokens that do not begin a word; losses ignore it."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one named tensor.

    Args:
        shape: for each dimension its fixed size, or its name if it is free (`"batch"`, `"seq"`).
        dtype: the dtype of the tensor.
    """

    shape: tuple[str | int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        dimensions = ", ".join(str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')}[{dimensions}]"

    def accepts(self, other: TensorSpec) -> bool:
        """Check whether a tensor declared as `other` may be used where this one is expected.

        All forms of a mask are accepted: bool in palm, float32 `[..., 1]` or `[...]` in PaddlePALM.
        """
        if {self.dtype, other.dtype} == MASK_DTYPES:
            mine, theirs = (
                spec.shape[:2] if spec.shape[2:] == (1,) else spec.shape for spec in (self, other)
            )
            return len(mine) == len(theirs)
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return False
        return all(
            isinstance(mine, str) or isinstance(theirs, str) or mine == theirs
            for mine, theirs in zip(self.shape, other.shape, strict=True)
        )


Specs = Mapping[str, TensorSpec]

MASK_DTYPES = {torch.bool, torch.float32}


def as_declared(tensors: Tensors, wanted: Specs) -> Tensors:
    """Return the tensors, with masks converted to the form that `wanted` declares."""
    found = dict(tensors)
    for name in wanted.keys() & tensors.keys():
        spec = wanted[name]
        tensor = tensors[name]
        if {spec.dtype, tensor.dtype} == MASK_DTYPES:
            if tensor.ndim > len(spec.shape):
                tensor = tensor.squeeze(-1)
            elif tensor.ndim < len(spec.shape):
                tensor = tensor.unsqueeze(-1)
            found[name] = tensor.to(spec.dtype)
    return found


def mismatches(consumer: str, wanted: Specs, producer: str, given: Specs) -> Iterator[str]:
    """Yield a sentence for every name in `wanted` that `given` lacks or declares differently."""
    for name, spec in wanted.items():
        if name not in given:
            have = ", ".join(sorted(given)) or "nothing"
            yield f"the {consumer} needs {name!r} as {spec}, but the {producer} provides only {have}"
        elif not spec.accepts(given[name]):
            yield f"the {consumer} needs {name!r} as {spec}, but the {producer} provides {given[name]}"


T = TypeVar("T")

MAX_HEADER = 1 << 24
"""Maximum size of a safetensors header in bytes, some thousand times a usual model's."""

MAX_NAMED = 6
"""Maximum number of parameters that a message lists."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors, on any device, as safetensors.

    Raises:
        StorageError: the file cannot be written.
    """
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with wrap_write_errors(path):
        path.touch()
        mode = path.stat().st_mode  # follows the umask; safetensors makes files private to their owner
        save_file(contiguous, path, metadata={"format": "pt"})  # `transformers` needs this entry
        path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        StorageError: it is missing or not safetensors.
    """
    with wrap_read_errors(path):
        _check_header(path)
        return load_file(path)


def headers_in(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Read the name, type (such as `F32`) and shape of the tensors in a safetensors file, without torch.

    Raises:
        ValueError, OSError: it is truncated, not safetensors, or cannot be read.
    """
    _check_header(path)
    with safe_open(path, "np") as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        return {name: (one.get_dtype(), one.get_shape()) for name, one in slices.items()}


def _check_header(path: Path) -> None:
    """Check the length of a safetensors file's header before it is read.

    Raises:
        ValueError: the file is truncated, or the length exceeds `MAX_HEADER`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER or path.stat().st_size < 8:
        raise ValueError("it is not safetensors, or truncated: the length of its header is not plausible")


def load_into(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Load weights that were saved in `folder` into a module.

    Raises:
        StorageError: some are missing, unexpected or of another shape.
    """
    own = module.state_dict()
    found = [
        *(f"{name} is missing" for name in own if name not in weights),
        *(f"{name} is unexpected" for name in weights if name not in own),
        *(
            f"{name} has shape {list(weights[name].shape)}, expected {list(value.shape)}"
            for name, value in own.items()
            if name in weights and weights[name].shape != value.shape
        ),
    ]
    if found:
        raise StorageError(
            f"{folder}: the weights do not fit the settings of {type(module).__name__}: "
            f"{'; '.join(shortened(found, MAX_NAMED))}; give the settings that it was trained with"
        )
    module.load_state_dict(dict(weights))


def weights_under(prefix: str, weights: Mapping[str, T]) -> dict[str, T]:
    """Return the weights whose names begin with `prefix` and a dot, by the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in weights.items() if name.startswith(start)}


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a digest of each tensor's type, shape and bytes."""
    digests = {}
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        digest = hashlib.blake2b(f"{plain.dtype} {tuple(plain.shape)}".encode(), digest_size=16)
        # As bytes, since NumPy has no bfloat16.
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        digests[name] = digest.hexdigest()
    return digests


def describe(
    registry: Registry[Any],
    component: Component,
    folder: Path,
    place: str = "",
    known: MutableMapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Return the JSON-ready description of a component that `rebuild` needs.

    Args:
        registry: the registry of the component's kind.
        component: the component.
        folder: receives copies of the files that settings name.
        place: subfolder for these copies.
        known: files that are already in `folder`, by checksum; one with the same content is referred to
            instead of copied again.
    """
    settings: dict[str, Any] = {}
    known = {} if known is None else known
    for name, value in component.settings.items():
        settings[name] = value
        if isinstance(value, Path):
            target = folder / place / (name.removesuffix("_path") + value.suffix)
            written = folder / f".{target.name}"
            component.write_file(name, written)
            first = known.setdefault(checksum(written), target)
            if first == target:
                make_folder(target.parent)
                written.rename(target)
            else:
                written.unlink()
            settings[name] = {"file": first.relative_to(folder).as_posix()}
    return {"name": registry.name_of(type(component)), "settings": settings}


def rebuild(
    registry: Registry[Any],
    saved: Any,
    folder: Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
    trust: str | Sequence[str] = (),
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Build a component from its description by `describe`.

    Args:
        registry: the registry of the component's kind.
        saved: the description; not trusted.
        folder: contains the files that it names.
        weights: all weights that the caller will load: parameters are left uninitialized, and the component
            may not be much larger than these.
        trust: see `Registry.named_in_directory`.
        overrides: settings that replace those of the description.

    Raises:
        StorageError: the description is malformed, names untrusted code or files elsewhere, or does not fit
            the component or its weights.
        ConfigError: settings are out of range.
    """
    place = f"the {registry.kind} that {folder} describes"
    with wrap_read_errors(place):
        component = registry.named_in_directory(saved["name"], folder, trust)
        files = path_settings(component)
        settings = {
            name: _setting(value, folder, name in files, f"{place}: {name}")
            for name, value in saved["settings"].items()
        }
        with ExitStack() as stack:
            if weights is not None:
                stack.enter_context(within_weights(weights, place))
                stack.enter_context(skip_init())
            try:
                return component(**{**settings, **overrides})
            except ConfigError as error:
                raise ConfigError(f"{place}: {problem}" for problem in error.problems) from None


def file_settings(saved: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings of a description, with files of the folder as paths."""
    return {name: _setting(value, folder, False, name) for name, value in saved.items()}


def _setting(value: Any, folder: Path, is_file: bool, place: str) -> Any:
    if isinstance(value, dict) and set(value) == {"file"}:
        return resolve_inside(folder, value["file"])
    if is_file and isinstance(value, str):
        raise StorageError(f"{place} should be a file in the directory, not {value!r}")
    return value
