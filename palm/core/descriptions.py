"""Components as JSON and back: their name, their settings, and the files that settings name beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palm.core.component import Component
from palm.core.registry import Registry


def described(registry: Registry[Any], component: Component, folder: Path, place: str = "") -> dict[str, Any]:
    """What `rebuilt` needs, JSON-ready.

    Args:
        registry: that of the component's kind.
        component: is described by its settings.
        folder: gets copies of the files that settings name.
        place: the folder in it that they go to.
    """
    settings: dict[str, Any] = {}
    for name, value in component.settings.items():
        settings[name] = value
        if isinstance(value, Path):
            target = folder / place / (name.removesuffix("_path") + value.suffix)
            target.parent.mkdir(parents=True, exist_ok=True)
            component.write_file(name, target)
            settings[name] = {"file": target.relative_to(folder).as_posix()}
    return {"name": registry.name_of(type(component)), "settings": settings}


def rebuilt(registry: Registry[Any], saved: dict[str, Any], folder: Path, **overrides: Any) -> Any:
    """The component that `described` describes, freshly built.

    Args:
        registry: that of the component's kind.
        saved: the description.
        folder: where the files lie.
        overrides: settings that replace those of the description.
    """
    settings = {
        name: folder / value["file"] if isinstance(value, dict) and set(value) == {"file"} else value
        for name, value in saved["settings"].items()
    }
    return registry[saved["name"]](**{**settings, **overrides})
