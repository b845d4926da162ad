"""Settings that are a directory's path or the name of a model at Hugging Face."""

from __future__ import annotations

import re
from pathlib import Path

# `pretrain/NAME` is where `palm download` puts a model: if nothing is there, no stranger's model is meant.
MODEL_NAME = re.compile(r"(?!pretrain/)\w[\w.-]{,95}/\w[\w.-]{,95}(@\w[\w./-]{,95})?", re.ASCII)
"""`owner/name` or `owner/name@revision`, of 96 characters each at most."""

ADAPTER_CONFIG = "adapter_config.json"
"""The file that describes a directory of adapters."""


def names_model(value: str, folder: Path) -> bool:
    """Tell whether a setting is a model's name: it has that form, and no path in `folder` is called so."""
    if not MODEL_NAME.fullmatch(value):
        return False
    return not (folder / value).exists()
