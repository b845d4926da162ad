"""What tasks are to each other in a step of several: their plan, and the scales of their losses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from palm.balance import Balance
from palm.core.checks import choice_problems
from palm.engine.training.recipe import LossScale, TasksPerStep
from palm.engine.training.task import Task
from palm.mixing import Mixing


def planned_steps(tasks: Sequence[Task], mixing: Mixing, tasks_per_step: TasksPerStep) -> int:
    """How many global steps a run is planned to have; it is a schedule's horizon."""
    drawn = [task for task in tasks if task.share_rows_with is None]
    expected, is_target = [task.expected_steps for task in drawn], [task.is_target for task in drawn]
    count = len(drawn) if tasks_per_step == "all" else tasks_per_step
    return mixing.planned_updates(expected, is_target, count)


def loss_scale(task: Task, kind: LossScale) -> float:
    """What a task's loss is multiplied by, so that losses of tasks with many and few classes are alike."""
    classes = num_classes(task) if kind == "classes" else None
    return 1.0 if classes is None else 1 / math.log(max(classes, 2))


def num_classes(task: Task) -> int | None:
    """How many classes, or places in a sequence, a task's loss chooses from; None where it chooses none."""
    declared = task.head.outputs_attr
    shape = next((declared[name].shape for name in ("logits", "start_logits") if name in declared), (None,))
    length: int | None = task.reader.settings.get("max_seq_len")
    return shape[-1] if isinstance(shape[-1], int) else length if shape[-1] == "seq" else None


def step_problems(
    tasks_per_step: TasksPerStep, balance: Balance | None, loss_scale: LossScale, tasks: Sequence[Task]
) -> list[str]:
    """What is wrong with how a run puts tasks together in one step."""
    found = list(choice_problems(("none", "classes"), loss_scale=loss_scale))
    drawn = [task for task in tasks if task.share_rows_with is None]
    if tasks_per_step == "all":
        together = len(tasks)
    elif isinstance(tasks_per_step, int) and 1 <= tasks_per_step <= len(drawn):
        together = tasks_per_step + len(tasks) - len(drawn)
    else:
        found.append(
            f"tasks_per_step should be a whole number from 1 to {len(drawn)}, as many as tasks are "
            f"drawn, or all, not {tasks_per_step!r}"
        )
        return found
    if balance is not None and together < 2:
        found.append(
            f"balance: {type(balance).__name__} weighs the tasks of one step, and here a step has one; set "
            "tasks_per_step to 2 or more, or all, or leave balance out"
        )
    return found
