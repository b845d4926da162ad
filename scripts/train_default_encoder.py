"""Train the small BERT from which the demos start, in two stages, on invented text that is not in the demos.

Random weights do not learn to read in a demo's three minutes, so this script pretrains them: first on pairs
of sentences, then on paragraphs, ten times as many as the demos have, about other people and places. No name
in the demos' dev files occurs in this text. On two cores it takes about half an hour.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from demo_data import tasks
from make_demo_data import DATA, files, writer
from safetensors.torch import load_file, save_file

import palm
from palm.pretrained.names import from_ours, to_ours

BACKBONE = DATA.parent / "configs" / "bert_small.json"
SEED = 1
SCALE = 10

COMMON: dict[str, Any] = {
    "backbone": "bert",
    "backbone_config_path": str(BACKBONE),
    "vocab_path": str(DATA / "vocab.txt"),
    "do_lower_case": True,
    "max_seq_len": 192,
    "max_query_len": 32,
    "doc_stride": 64,
    "max_answer_len": 10,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "warmup_proportion": 0.1,
    "weight_decay": 0.01,
    "print_every_n_steps": 100,
}


def write_texts(folder: Path) -> None:
    """Write the text of both stages."""
    glimpses = tasks.glimpsing(writer(SEED, "glimpses", "train"), 20_000)
    for name, text in [("glimpses.json", glimpses), *files(SEED, SCALE)]:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def read_glimpses(folder: Path) -> Path:
    """Train stage one, with two sentences and two questions; return the model's folder."""
    task = {"reader": "mrc", "paradigm": "mrc", "train_file": str(folder / "glimpses.json")}
    return _trained(folder / "first", {"mrqa": task}, task_instance="mrqa", num_epochs=4)


def read_paragraphs(folder: Path, start: Path) -> Path:
    """Train stage two, with the tasks of demo 2; return the model's folder."""
    settings = {
        "mrqa": {"reader": "mrc", "paradigm": "mrc", "train_file": str(folder / "mrqa/train.json")},
        "match": {"reader": "match", "paradigm": "match", "train_file": str(folder / "match4mrqa/train.tsv")},
        "mlm": {"reader": "mlm", "paradigm": "mlm", "train_file": str(folder / "mlm4mrqa/train.tsv")},
    }
    return _trained(
        folder / "second",
        settings,
        task_instance="mrqa, match, mlm",
        target_tag="1, 0, 0",
        mix_ratio="1.0, 0.4, 0.3",
        num_epochs=2.5,
        pretrain_path=str(start),
    )


def _trained(save_path: Path, settings: dict[str, dict[str, str]], **others: Any) -> Path:
    controller = palm.Controller(
        {**COMMON, **others, "save_path": str(save_path), "overwrite": True, "tasks": settings}, argv=[]
    )
    controller.train()
    return save_path / "mrqa" / "infer_model"


def export(model: Path, output: Path) -> None:
    """Write only the encoder, in Hugging Face's layout; 16 bits are enough to start from."""
    weights = from_ours(to_ours(load_file(model / "model.safetensors")).weights, "huggingface")
    output.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.half().contiguous() for name, value in weights.items()}, output / "model.safetensors"
    )
    shutil.copyfile(BACKBONE, output / "config.json")
    shutil.copyfile(DATA / "vocab.txt", output / "vocab.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=DATA / "encoder", help="folder to write the encoder to"
    )
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        write_texts(Path(folder))
        export(read_paragraphs(Path(folder), read_glimpses(Path(folder))), arguments.output)


if __name__ == "__main__":
    main()
