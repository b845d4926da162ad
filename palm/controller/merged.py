"""A stage that trains nothing: it merges the weights of two others by shares that dev scores choose."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from math import fsum
from typing import Any

from palm.config import read_config
from palm.controller.build import Parts, build
from palm.controller.plan import plan
from palm.controller.stages import StagePlan
from palm.core.files.fs import write_text
from palm.core.files.tensors import load_into
from palm.core.logging import logger
from palm.core.numerics.device import device_of
from palm.core.version import __version__
from palm.distributed import is_first
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.model_paths import LAST
from palm.engine.run.evaluation import json_ready, normalized_score
from palm.engine.run.merging import between
from palm.engine.run.stages import StagedDirectory
from palm.engine.run.weights import saved_weights, write_weights
from palm.engine.training.task import Task
from palm.engine.watching.history import FILE, VERSION

Scores = Mapping[str, Mapping[str, float]]


def merge_stage(directory: StagedDirectory, stage: StagePlan) -> None:
    """Choose the share by the targets' dev scores, and save what comes of it as other stages do.

    Of shares that are equally good the smallest is chosen.

    Source: the merge of ForkMerge, Jiang et al., 2023, arXiv:2301.12618, equation 5, over a grid of shares.
    """
    assert stage.merges is not None
    began = time.perf_counter()
    config = read_config(stage.settings, argv=[])
    parts = build(plan(config, for_train=True), config.place)
    device = device_of(parts.settings.use_gpu, parts.settings.device)
    models = {
        task.name: InferenceModel(
            task.name,
            task.reader,
            parts.backbone,
            task.head,
            batch_size=task.pred_batch_size,
            precision=parts.settings.precision,
        ).to(device)
        for task in parts.tasks
    }
    targets = [task for task in parts.tasks if task.name in stage.targets]
    one, other = (saved_weights(directory.weights(label)) for label in stage.merges)
    lines: list[dict[str, Any]] = [_start(parts, targets, device.type)]
    found: dict[float, tuple[float, Scores]] = {}
    for share in sorted(stage.shares):
        _fill(parts, between(one, other, share, stage.merges))
        scores = {}
        for task in targets:
            assert task.dev_file is not None
            scores[task.name] = models[task.name].evaluate(task.dev_file, task.metrics)
        value = fsum(normalized_score(task, scores[task.name]) for task in targets) / len(targets)
        found[share] = value, scores
        seconds = round(time.perf_counter() - began, 3)
        shown = {name: json_ready(own) for name, own in scores.items()}
        lines.append({"event": "merge", "step": 0, "share": share, "scores": shown, "seconds": seconds})
        logger.info("%s: share %g of %s: %.4f", stage.label, share, stage.merges[1], value)
    chosen = max(found, key=lambda share: (found[share][0], -share))
    logger.info("%s: share %g is chosen", stage.label, chosen)
    merged = between(one, other, chosen, stage.merges)
    _fill(parts, merged)
    shown = {name: json_ready(own) for name, own in found[chosen][1].items()}
    lines.append({"event": "evaluation", "step": 0, "scores": shown, "dev_loss": {}, "best": list(shown)})
    parents = [
        {"model": label, "share": part}
        for label, part in zip(stage.merges, (1 - chosen, chosen), strict=True)
    ]
    for task in targets:
        models[task.name].save(
            directory.folder(stage.label) / task.name / LAST, training={"merged": parents}, overwrite=True
        )
        place = f"{task.name}/{LAST}"
        lines.append({"event": "saved", "step": 0, "kind": "target", "task": task.name, "path": place})
    seconds = round(time.perf_counter() - began, 3)
    lines.append({"event": "end", "step": 0, "reason": "finished", "seconds": seconds})
    if is_first():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(directory.folder(stage.label) / FILE, text)
        write_weights(directory.weights(stage.label), merged)


def _fill(parts: Parts, weights: Any) -> None:
    folder = parts.settings.save_path
    load_into(parts.backbone, weights.backbone, folder)
    for task in parts.tasks:
        if task.name in weights.heads:
            load_into(task.head, weights.heads[task.name], folder)


def _start(parts: Parts, targets: Sequence[Task], device: str) -> dict[str, Any]:
    """The first line of the stage's history."""
    plans = {
        task.name: {
            "is_target": task in targets,
            "expected_steps": 0,
            "steps_per_epoch": 0,
            "rows": 0,
            "mix_ratio": task.mix_ratio,
        }
        for task in parts.tasks
    }
    return {
        "event": "start",
        "step": 0,
        "version": VERSION,
        "palm": __version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "total_steps": 0,
        "precision": parts.settings.precision,
        "device": device,
        "tasks": plans,
    }
