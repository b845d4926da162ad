"""A stage that trains nothing: it merges the weights of two others by shares that dev scores choose."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import Any

from palm.config import read_config
from palm.controller.build import Parts, build
from palm.controller.plan import plan
from palm.controller.stages import StagePlan
from palm.core.files.tensors import load_into
from palm.core.logging import logger
from palm.core.numerics.device import device_of
from palm.distributed import is_first
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.model_paths import LAST
from palm.engine.run.evaluation import normalized_score
from palm.engine.run.merging import between
from palm.engine.run.stages import StagedDirectory
from palm.engine.run.weights import saved_weights, write_weights
from palm.engine.training.events import Ended, Evaluated, Event, MergeTried, PlannedTask, Saved
from palm.engine.watching.history import HISTORY_FILE, plan_of, write_lines

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
    plans = {task.name: PlannedTask(task in targets, mix_ratio=task.mix_ratio) for task in parts.tasks}
    events: list[Event] = [plan_of(plans, 0, parts.settings.precision, device.type)]
    found: dict[float, tuple[float, Scores]] = {}
    for share in sorted(stage.shares):
        _fill(parts, between(one, other, share, stage.merges))
        scores: dict[str, Mapping[str, float]] = {}
        for task in targets:
            assert task.dev_file is not None
            scores[task.name] = models[task.name].evaluate(task.dev_file, task.metrics)
        value = fsum(normalized_score(task, scores[task.name]) for task in targets) / len(targets)
        found[share] = value, scores
        events.append(MergeTried(0, share, scores, round(time.perf_counter() - began, 3)))
        logger.info("%s: share %g of %s: %.4f", stage.label, share, stage.merges[1], value)
    chosen = max(found, key=lambda share: (found[share][0], -share))
    logger.info("%s: share %g is chosen", stage.label, chosen)
    merged = between(one, other, chosen, stage.merges)
    _fill(parts, merged)
    events.append(Evaluated(0, found[chosen][1], best=list(found[chosen][1])))
    parents = [
        {"model": label, "share": part}
        for label, part in zip(stage.merges, (1 - chosen, chosen), strict=True)
    ]
    for task in targets:
        models[task.name].save(
            directory.folder(stage.label) / task.name / LAST, training={"merged": parents}, overwrite=True
        )
        events.append(Saved(0, "target", Path(task.name, LAST), task.name))
    events.append(Ended(0, "finished", round(time.perf_counter() - began, 3)))
    if is_first():
        write_lines(directory.folder(stage.label) / HISTORY_FILE, [event.as_line() for event in events])
        write_weights(directory.weights(stage.label), merged)


def _fill(parts: Parts, weights: Any) -> None:
    folder = parts.settings.save_path
    load_into(parts.backbone, weights.backbone, folder)
    for task in parts.tasks:
        if task.name in weights.heads:
            load_into(task.head, weights.heads[task.name], folder)
