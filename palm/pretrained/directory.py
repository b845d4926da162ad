"""What a directory of pretrained weights says of itself, as settings of a run."""

from __future__ import annotations

import json
from pathlib import Path

from palm.errors import StorageError
from palm.pretrained.encoders import CONFIG_FILES


def settings_of_directory(path: str | Path) -> dict[str, str]:
    """The settings that make a run start from a directory's weights.

    Args:
        path: a directory with weights, `vocab.txt` and the encoder's JSON file.

    Returns:
        `backbone`, `backbone_config_path`, `vocab_path` and `pretrain_path`, paths absolute.

    Raises:
        StorageError: a file is missing; says which.
    """
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise StorageError(f"--pretrain: no such directory: {folder}")
    config = next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)
    if config is None:
        raise StorageError(f"--pretrain: {folder} has none of {', '.join(CONFIG_FILES)}")
    if not (vocabulary := folder / "vocab.txt").is_file():
        raise StorageError(f"--pretrain: {folder} has no vocab.txt")
    return {
        "backbone": _kind(config),
        "backbone_config_path": str(config),
        "vocab_path": str(vocabulary),
        "pretrain_path": str(folder),
    }


def _kind(config: Path) -> str:
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StorageError(f"cannot read {config}: {error}") from error
    ernie = config.name == "ernie_config.json" or "task_type_vocab_size" in content
    return str(content.get("model_type", "ernie" if ernie else "bert"))
