"""What several tasks cost beyond their own steps, and what the framework costs beyond the model's step."""

from __future__ import annotations

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from speed_cases import SHAPES
from speed_runs import clock

import palm
from palm.train import loop
from palm.train.loop import Training
from palm.train.train_step import Replica

DEMO = Path(__file__).resolve().parents[1] / "demos" / "demo2"
WARM_UP = 8
TASKS = {"mrqa": 1.0, "mlm4mrqa": 0.5, "match4mrqa": 0.5}


def overheads(shape: str, threads: int, steps: int) -> str:
    """Train demo 2's three tasks together and, with the same batches, one by one.

    Args:
        shape: of the encoder.
        threads: for the report.
        steps: of each.

    Returns:
        Lines of Markdown.
    """
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        together = _training(folder, shape, *TASKS)
        alone = {name: _training(folder, shape, name) for name in TASKS}
        with _Stopwatch() as watch:
            pairs = [both(together, alone) for _ in range(steps + WARM_UP)][WARM_UP:]
            inside = watch.seconds_of(together)[WARM_UP:]
    ratios = [several / single for several, single in pairs]
    shares = [1 - seconds / several for seconds, (several, _) in zip(inside, pairs, strict=True)]
    total = sum(several for several, _ in pairs) / sum(single for _, single in pairs)
    return (
        f"\n### {shape}, demo 2's mix, {threads} thread{'s' if threads > 1 else ''}\n\n"
        f"{len(pairs)} steps among three tasks took {total - 1:+.1%} of the time of the same steps in runs "
        f"with one task each (single steps {min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}, median "
        f"{median(ratios) - 1:+.1%}).\n"
        f"Outside of `train_step` (drawing, collating, schedule, seeds): {median(shares):.2%} of a step."
    )


def _training(folder: str, shape: str, *tasks: str) -> Training:
    sizes = Path(folder) / "backbone.json"
    sizes.write_text(json.dumps(SHAPES[shape].settings), encoding="utf-8")
    settings: dict[str, Any] = {
        "task_instance": ",".join(tasks),
        "mix_ratio": ",".join(str(TASKS[task]) for task in tasks),
        "target_tag": ",".join("1" for _ in tasks),
        "backbone_config_path": sizes,
        "pretrain_path": "null",  # weights of another shape
        "save_path": folder,
        "data_cache": Path(folder) / "cache",
    }
    argv = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return palm.Controller(DEMO / "config.yaml", task_dir="tasks", argv=argv).training()


def both(together: Training, alone: Mapping[str, Training], count: int = 1) -> tuple[float, float]:
    """Seconds of the next steps among all tasks, and of the same ones in runs of one task each.

    They take turns in who comes first, because the second finds the batches' data in the cache.
    """
    steps = {task.name: task.step for task in together.tasks}
    drawn: Counter[str] = Counter()
    for step in range(together.step, together.step + count):
        progress = [task.progress(steps[task.name] + drawn[task.name]) for task in together.tasks]
        place = together.parts.mixing.draw(together.config.settings.random_seed, step, progress)
        drawn[together.tasks[place].name] += 1
    for name in drawn:
        alone[name].tasks[0].step = steps[name]
    apart = [(alone[name], number) for name, number in drawn.items()]
    if together.step // count % 2:
        return _seconds((together, count)), _seconds(*apart)
    first = _seconds(*apart)
    return _seconds((together, count)), first


def _seconds(*runs: tuple[Training, int]) -> float:
    """Of as many next steps of each run."""
    device = runs[0][0].device
    started = clock(device)
    for training, count in runs:
        for _ in range(count):
            training.next_step()
    return clock(device) - started


class _Stopwatch:
    """Times the loop's `train_step` while it is open."""

    def __enter__(self) -> _Stopwatch:
        self.seconds: list[tuple[Replica, float]] = []
        self._original = original = loop.train_step

        def timed(replica: Replica, *arguments: Any, **settings: Any) -> Any:
            device = replica.parameters[0].device
            started = clock(device)
            loss = original(replica, *arguments, **settings)
            self.seconds.append((replica, clock(device) - started))
            return loss

        loop.train_step = timed
        return self

    def seconds_of(self, training: Training) -> list[float]:
        """Of each of a run's steps."""
        return [seconds for replica, seconds in self.seconds if replica is training.replica]

    def __exit__(self, *_: object) -> None:
        loop.train_step = self._original
