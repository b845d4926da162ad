"""Components as JSON and back: their name, their settings, and copies of the files that settings name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from palm.core.component import Component, path_settings
from palm.core.errors import ConfigError, StorageError
from palm.core.files.checksum import checksum
from palm.core.files.door import make_folder, remove, rename
from palm.core.files.untrusted import resolve_inside, wrap_read_errors
from palm.core.numerics.allocation_limit import within_weights
from palm.core.numerics.skip_init import skip_init
from palm.core.registry import Registry


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
                rename(written, target)
            else:
                remove(written)
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
