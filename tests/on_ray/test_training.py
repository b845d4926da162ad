"""Training with Ray's workers is training with torchrun's; runs of a grid on Ray are those without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers import tiny


def config(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    given = tiny.config(folder, "cls", "match", save_path=str(folder / name), overwrite=False, **settings)
    given["tasks"]["cls"]["dev_file"] = given["tasks"]["cls"]["train_file"]
    return given
