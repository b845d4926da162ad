"""Listing and downloading of models by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from palm.config.model_names import MODEL_NAME
from palm.core.checks import raise_any, type_problems
from palm.core.errors import PalmError
from palm.core.logging import logger, show_on_console
from palm.core.registry import did_you_mean
from palm.downloader.models import HUGGING_FACE, MODELS, Model

ITEMS = {"pretrain": MODELS}
"""Downloadable items by kind."""


def ls(item: str = "all", scope: str = "all") -> None:
    """Log the names that `download` accepts.

    Args:
        item: the kind of item, `pretrain`, or `all`.
        scope: one name, or `all`.

    Raises:
        PalmError: if the name is unknown; lists the known ones.
    """
    show_on_console()
    for line in listed(item, scope):
        logger.info("%s", line)


def listed(item: str = "all", scope: str = "all") -> Iterator[str]:
    """Yield the lines of `ls`."""
    for kind in ITEMS if item == "all" else (item,):
        models = _chosen(kind, scope)
        yield f"Available {kind} items:"
        for model in models:
            remark = f" (Hugging Face: {model.repository})" if model.repository else ""
            remark = remark if model.is_supported else " (its backbone is not supported)"
            yield f"  => {model.name}{remark}"


def download(item: str, scope: str = "all", path: str | Path = ".") -> Path:
    """Download pretrained models to `<path>/<item>/<scope>/`; an existing folder is not changed.

    Args:
        item: the kind of item: `pretrain`.
        scope: a model's name, `owner/name` or `owner/name@revision` of any model at Hugging Face, or `all`.
        path: the parent folder of `pretrain`.

    Raises:
        PalmError: if the name is unknown, or the network, the server or the disk fails.
    """
    raise_any(type_problems(str, "a string", item=item, scope=scope))
    from palm.downloader.folders import obtain

    show_on_console()
    folder = Path(path) / item
    for model in _chosen(item, scope):
        if not model.is_supported:
            logger.warning("%s: its backbone is not supported", model.name)
        if model.is_supported or scope != "all":
            obtain(model, folder / model.name)
    return folder if scope == "all" else folder / scope


def _chosen(item: str, scope: str) -> list[Model]:
    models = ITEMS[_known(item, ITEMS)]
    if MODEL_NAME.fullmatch(scope):
        return [Model(scope, f"{HUGGING_FACE}/{scope}")]
    return list(models.values()) if scope == "all" else [models[_known(scope, models)]]


def _known(name: str, names: Iterable[str]) -> str:
    names = list(names)
    if name not in names:
        raise PalmError(
            f"cannot download {name!r}; the known names are {', '.join(names)}{did_you_mean(name, names)}"
        )
    return name
