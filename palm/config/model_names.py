"""Settings that are the path of a directory or the name of a model on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

# `palm download` writes models to `pretrain/NAME`; if that is missing, a model on the Hub is not meant.
MODEL_NAME = re.compile(r"(?!pretrain/)\w[\w.-]{,95}/\w[\w.-]{,95}(@\w[\w./-]{,95})?", re.ASCII)
"""`owner/name` or `owner/name@revision`, each part at most 96 characters long."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that describes a directory of adapters."""


def names_model(value: str, folder: Path) -> bool:
    """Check whether a setting is the name of a model: it has that form, and is not a path in `folder`."""
    if not MODEL_NAME.fullmatch(value):
        return False
    return not (folder / value).exists()
