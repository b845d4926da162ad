"""`palm.downloader` of PaddlePALM 2.x: models by its names, which the Hugging Face Hub has under others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from palm.config.files import MODEL_NAME
from palm.core.component import did_you_mean, raise_any, type_problems
from palm.core.errors import PalmError
from palm.core.io import read_object
from palm.core.logging import logger, show_on_console

MODELS: dict[str, str | None] = {
    "RoBERTa-zh-base": "hfl/chinese-roberta-wwm-ext",
    "RoBERTa-zh-large": "hfl/chinese-roberta-wwm-ext-large",
    "ERNIE-v2-en-base": "nghuyong/ernie-2.0-base-en",
    "ERNIE-v2-en-large": "nghuyong/ernie-2.0-large-en",
    "XLNet-cased-base": None,
    "XLNet-cased-large": None,
    "ERNIE-v1-zh-base": "nghuyong/ernie-1.0-base-zh",
    "ERNIE-v1-zh-base-max-len-512": None,
    "BERT-en-uncased-large-whole-word-masking": "google-bert/bert-large-uncased-whole-word-masking",
    "BERT-en-cased-large-whole-word-masking": "google-bert/bert-large-cased-whole-word-masking",
    "BERT-en-uncased-base": "google-bert/bert-base-uncased",
    "BERT-en-uncased-large": "google-bert/bert-large-uncased",
    "BERT-en-cased-base": "google-bert/bert-base-cased",
    "BERT-en-cased-large": "google-bert/bert-large-cased",
    "BERT-multilingual-uncased-base": "google-bert/bert-base-multilingual-uncased",
    "BERT-multilingual-cased-base": "google-bert/bert-base-multilingual-cased",
    "BERT-zh-base": "google-bert/bert-base-chinese",
    "bert-en-uncased-large": "google-bert/bert-large-uncased",
    "ernie-en-uncased-large": "nghuyong/ernie-2.0-large-en",
}
"""Published name -> the model on the Hub: the names of 2.x, then the two in the documents of 0.2.1.

None if palm has no such encoder (XLNet), or if the Hub has no conversion of the model (ERNIE 1.0 with 512
tokens; `nghuyong/ernie-1.0-base-zh` does not say which of the two it is).
"""


def ls(item: str = "all", scope: str = "all") -> None:
    """Log the names that `download` accepts; for the arguments see `listed`."""
    show_on_console()
    for line in listed(item, scope):
        logger.info("%s", line)


def listed(item: str = "all", scope: str = "all") -> Iterator[str]:
    """Yield the names that `download` accepts, as lines.

    Args:
        item: the kind of item, `pretrain`, or `all`.
        scope: one name, or `all`.

    Raises:
        PalmError: if the name is unknown; lists the known ones.
    """
    models = _chosen("pretrain" if item == "all" else item, scope)
    yield "Available pretrain items:"
    for name, repository in models.items():
        yield f"  => {name} ({repository or 'not available'})"


def download(item: str, scope: str = "all", path: str | Path = ".") -> Path:
    """Download pretrained models to `<path>/<item>/<scope>/`; complete files are not downloaded again.

    Args:
        item: the kind of item: `pretrain`.
        scope: a published name, `owner/name` or `owner/name@revision` of any model on the Hub, or `all`.
        path: the parent folder of `pretrain`.

    Raises:
        PalmError: if the name is unknown or the Hub has no such model, or if the download fails.
    """
    raise_any(type_problems(str, "a string", item=item, scope=scope))
    from palm.pretrained.hub import fetch

    show_on_console()
    folder = Path(path) / item
    for name, repository in _chosen(item, scope).items():
        if repository is not None:
            logger.info("Downloading %s: %s from Hugging Face (%s)...", item, name, repository)
            _name_as_paddlepalm(fetch(repository, folder / name))
            logger.info("done!")
        elif scope != "all":
            why = "palm has no such encoder, or the Hugging Face Hub has no such model"
            raise PalmError(f"{name} cannot be downloaded: {why}")
    return folder if scope == "all" else folder / scope


def _name_as_paddlepalm(folder: Path) -> None:
    """Add `bert_config.json` or `ernie_config.json`, the names that PaddlePALM's examples use."""
    config = folder / "config.json"
    if config.is_file() and (kind := read_object(config).get("model_type")) in ("bert", "ernie"):
        shutil.copyfile(config, folder / f"{kind}_config.json")


def _chosen(item: str, scope: str) -> dict[str, str | None]:
    if item != "pretrain":
        raise PalmError(f"cannot download {item!r}; the only item is 'pretrain'")
    if MODEL_NAME.fullmatch(scope):
        return {scope: scope}
    if scope not in (*MODELS, "all"):
        raise PalmError(
            f"cannot download {scope!r}; give owner/name of a model on the Hugging Face Hub, or one of "
            f"{', '.join(MODELS)}{did_you_mean(scope, MODELS)}"
        )
    return MODELS if scope == "all" else {scope: MODELS[scope]}
