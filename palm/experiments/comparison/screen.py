"""`palm compare --screen`: estimate the effect of each helper on the targets, and compare the best few."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palm.config import Config
from palm.controller.controller import Controller
from palm.controller.document import document
from palm.controller.plan import Plan, plan
from palm.controller.saved_model import targets_of
from palm.controller.settings import PER_TASK, marked
from palm.core.checks import count_problems, raise_any
from palm.core.files.fs import check_replaceable, write_json, write_text
from palm.core.logging import logger
from palm.core.numerics.rng import generator
from palm.core.shown import aligned
from palm.experiments.comparison.compare import compare
from palm.experiments.comparison.outcome import Outcome
from palm.experiments.comparison.setup import dev_file_of
from palm.experiments.comparison.variants import ALONE, REFERENCE
from palm.experiments.grid.folder import word_of
from palm.experiments.grid.source import Source, folder_of
from palm.train.device_transfer import placed
from palm.train.loop import Training
from palm.train.stream import TaskStream
from palm.train.task import Task
from palm.train.train_step import TaskBatches, pop_gradients, sum_of_losses
from palm.train.transfer import TransferProbe, dev_stream, undisturbed

PART = 4
"""Rows that share one gradient: four times as many rows in little more time."""

PARTS = 32
"""Maximum gradients of a task; twice as many for dev rows."""

WIDTH = 4096
"""Dimension of a projected gradient."""

MOMENTS = 4
"""Moments of the run at which effects are estimated; at its end, a target has memorized its few rows."""

PENALTY = 0.1
"""Weight decay of a fit, as a share of the target's mean squared slope; the linear model is only local."""

Linearised = tuple[Tensor, Tensor]
"""Parts of a task at given weights: log-odds, float64[parts], and their slopes, float64[parts, WIDTH]."""


@dataclass(frozen=True)
class Estimate:
    """The estimated effect of a helper on the targets' dev rows.

    Args:
        helper: the task.
        fall: share by which it lowers the targets' dev loss compared with the targets alone; mean of targets.
        look_ahead, cosine: of the helper's training rows for the targets' dev rows, see `Transferred`; means.
    """

    helper: str
    fall: float
    look_ahead: float
    cosine: float


@dataclass(frozen=True)
class Screened:
    """Estimates of all helpers, a comparison with the best, and a recommendation; `print` shows them.

    Args:
        estimates: of all helpers, the best look-ahead first.
        outcome: the comparison with the best of them.
        recommended: settings of the tasks to train, which replace those of the configuration.
        why: the reason for the recommendation.
    """

    estimates: Sequence[Estimate]
    outcome: Outcome
    recommended: Mapping[str, Any]
    why: str

    def __str__(self) -> str:
        table = [["helper", "dev loss", "look-ahead", "cosine"]]
        for each in self.estimates:
            table.append(
                [each.helper, f"{-100 * each.fall:+.1f} %", f"{each.look_ahead:+.2f}", f"{each.cosine:+.2f}"]
            )
        settings = (f"{name}: {word_of(value)}" for name, value in self.recommended.items())
        return "\n".join([*aligned(table), "", str(self.outcome), "", f"Recommended: {self.why}", *settings])


def screened(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    keep: int,
    output: str | Path | None = None,
    argv: Sequence[str] = (),
    **options: Any,
) -> Screened:
    """Estimate the effect of each helper with one run of all tasks, and compare with the best few.

    Args:
        config, task_dir, argv: as for `compare`.
        keep: number of helpers to compare with.
        output: the folder, which contains the comparison; by default `<save_path>_screen`.
        options: of `compare`.

    Raises:
        ConfigError: a target has no dev rows, or there is no helper; and as for `compare`.

    Source: Li, Sharma and Zhang, 2024, arXiv:2409.19458: a model of all tasks is linearised, and a regression
    on projected gradients estimates the loss after training on some of the tasks.
    """
    source = Source(config, task_dir, argv)
    whole = source.at({})
    planned = plan(whole, for_train=True)
    targets = targets_of(planned.settings)
    helpers = [name for name in whole.tasks if name not in targets]
    raise_any(
        [*count_problems(1, keep=keep), *_problems(planned, targets, helpers, options.get("test") or {})]
    )
    folder = folder_of(planned.settings["save_path"], "screen", output)
    for name in ("screen.json", "screen.txt"):
        check_replaceable(folder / name)

    estimates = estimates_during(Controller(config, task_dir, argv=argv).training())
    best = [each.helper for each in estimates[:keep]]
    logger.info("screen: comparing with %s, the best of %d helpers", ", ".join(best), len(helpers))
    changes = [
        f"--{name}={word_of(value)}" for name, value in settings_of(whole, planned, [*targets, *best]).items()
    ]
    outcome = compare(config, task_dir, output=folder / "compare", argv=[*argv, *changes], **options)
    kept, why = chosen_helpers(outcome, best)
    found = Screened(estimates, outcome, settings_of(whole, planned, [*targets, *kept]), why)
    write_json(folder / "screen.json", asdict(found) | {"outcome": outcome.as_json()})
    write_text(folder / "screen.txt", f"{found}\n")
    return found


def settings_of(config: Config, planned: Plan, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a configuration needs to train only some of its tasks, in its order."""
    run = document(config, planned, [name for name in config.tasks if name in tasks])["global"]
    kept = ("task_instance", *marked(PER_TASK), "best_by", "mixing_references")
    return {name: run[name] for name in kept if name in run}


def _problems(
    planned: Plan, targets: Sequence[str], helpers: Sequence[str], test: Mapping[str, str | Path]
) -> Iterator[str]:
    if planned.settings.get("stages"):
        yield "screen: stages name their tasks; remove the stages, and compare them afterwards"
    if not helpers:
        yield "screen: all tasks are targets; mark the helpers to choose from with target_tag 0"
    for target in targets:
        if (dev := dev_file_of(planned, target)) is None:
            yield f"screen: dev rows choose the helpers, and task {target!r} has no dev_file"
        elif target not in test or Path(test[target]).absolute() == dev.absolute():
            yield f"screen: dev rows choose the helpers of {target!r}; name other rows: --test {target}=FILE"


def chosen_helpers(outcome: Outcome, tried: Sequence[str]) -> tuple[list[str], str]:
    """Return the helpers to keep and the reason: all but harmful ones, if training with all of them helps."""
    judged = [each for each in outcome.answers if each.reference == REFERENCE and each.judged]
    verdicts = " ".join(each.verdict for each in judged if each.label.startswith(ALONE))
    if "better" not in verdicts or "worse" in verdicts:
        return [], "no helper, because training together is not shown to be better than alone."
    harmful = [name for name in tried if "harmful" in " ".join(outcome.helpers.get(name, {}).values())]
    kept = [name for name in tried if name not in harmful]
    without = f"; {', '.join(harmful)} did harm" if harmful else ""
    return kept, f"{', '.join(kept)}, because together is better than alone{without}."


def estimates_during(training: Training) -> list[Estimate]:
    """Train to the end, and return the mean of the estimates at `MOMENTS` equal intervals.

    Returns:
        An estimate for each helper, the best look-ahead first. With eight helpers of known worth, those that
        help were always among the first three by look-ahead (docs/results.md).
    """
    moments = {math.ceil(training.total_steps * part / MOMENTS) for part in range(1, MOMENTS + 1)}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for step in training.steps():
        for each in estimates_of(training) if step.number in moments else ():
            found.setdefault(each.helper, []).append((each.fall, each.look_ahead, each.cosine))
    means = [Estimate(helper, *map(mean, zip(*own, strict=True))) for helper, own in found.items()]
    return sorted(means, key=lambda each: -each.look_ahead)


def estimates_of(training: Training) -> list[Estimate]:
    """Estimate the effect of each helper on the targets' dev losses, linearised at the present weights.

    Args:
        training: a run of all tasks; every target has a dev_file.
    """
    targets = {task.name: task for task in training.tasks if task.is_target}
    compared = TransferProbe(training, -1, targets).measure()
    parameters = training.model.named_parameters()
    sizes = [each.numel() if name.startswith("backbone.") else 0 for name, each in parameters]
    project = projection(sizes, training.recipe.device)
    with undisturbed(training):
        seen = {task.name: linearised(training, task, task.stream, PARTS, project) for task in training.tasks}
        dev = {
            name: linearised(training, task, dev_stream(task), 2 * PARTS, project)
            for name, task in targets.items()
        }
    alone = {name: loss_after([seen[name]], dev[name]) for name in targets}
    found = []
    for helper in seen.keys() - targets:
        falls = [1 - loss_after([seen[name], seen[helper]], dev[name]) / loss for name, loss in alone.items()]
        both = (compared.look_ahead[helper].values(), compared.cosine[helper].values())
        found.append(Estimate(helper, mean(falls), *map(mean, both)))
    return found


def projection(
    sizes: Sequence[int], device: torch.device | str = "cpu"
) -> Callable[[Sequence[Tensor | None]], Tensor]:
    """Return a random projection of gradients to `WIDTH` values, which preserves dot products up to noise.

    Each value is the sum, with random signs, of every `WIDTH`-th entry of all gradients in a row.

    Args:
        sizes: number of entries of every gradient; 0 to ignore it.
        device: of the gradients.
    """
    starts = list(accumulate(sizes, initial=0))
    drawn = generator(0, "projection").integers(0, 2, starts[-1], dtype="int8")
    signs = torch.from_numpy(2 * drawn - 1).to(device)

    def project(gradients: Sequence[Tensor | None]) -> Tensor:
        total = torch.zeros(WIDTH, device=device)
        for gradient, (start, end) in zip(gradients, pairwise(starts), strict=True):
            if gradient is not None and end > start:
                flat = F.pad(gradient.flatten() * signs[start:end], (start % WIDTH, -end % WIDTH))
                total += flat.view(-1, WIDTH).sum(0)
        return total.double().cpu()

    return project


def linearised(
    training: Training,
    task: Task,
    stream: TaskStream | None,
    count: int,
    project: Callable[[Sequence[Tensor | None]], Tensor],
) -> Linearised:
    """Return the log-odds of p = exp(-loss) for parts of a task's rows, and their slopes."""
    assert stream is not None
    size = min(PART, len(stream.rows))
    stream = replace(stream, batch_size=size, max_tokens_per_batch=None)
    odds = []
    slopes = []
    for number in range(min(count, stream.steps_per_epoch)):
        batch = stream.batch(number)
        if task.head.num_terms(batch):
            parts = [(placed(batch, training.recipe.device, training.model.backbone), 1.0)]
            loss = sum_of_losses(training.replica, [TaskBatches(task.name, parts)]).item()
            # A loss of 0 has no log-odds, and exp overflows above 709.
            loss = min(max(loss, 1e-6), 700.0)
            odds.append(-math.log(math.expm1(loss)))
            slopes.append(project(pop_gradients(training.replica)) / math.expm1(-loss))
    return torch.tensor(odds, dtype=torch.float64), torch.stack(slopes)


def loss_after(tasks: Sequence[Linearised], judged: Linearised, penalty: float = PENALTY) -> float:
    """Estimate the loss of some rows after training on tasks, the first of which is the target.

    It is the loss of a logistic regression on the slopes. The tasks share the updates of the target alone.
    """
    odds = torch.cat([each for each, _ in tasks])
    slopes = torch.cat([each for _, each in tasks])
    shares = torch.cat([torch.full_like(each, 1 / len(each) / len(tasks)) for each, _ in tasks])
    scale = tasks[0][1].square().sum(1).mean()  # one for all fits of a target
    basis = torch.linalg.qr(slopes.T).Q  # the solution is in the span of the slopes
    change = basis @ fitted(odds, slopes @ basis, shares, penalty * scale)
    return F.softplus(-judged[0] - judged[1] @ change).mean().item()


def fitted(odds: Tensor, features: Tensor, shares: Tensor, penalty: Tensor) -> Tensor:
    """Return the change of weights that minimises softplus(-odds - features @ change) plus the penalty."""
    change = torch.zeros(features.shape[1], dtype=torch.float64, requires_grad=True)
    rule = torch.optim.LBFGS([change], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        rule.zero_grad()
        total = shares @ F.softplus(-odds - features @ change) + penalty / 2 * change.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    rule.step(loss)  # type: ignore[no-untyped-call]
    return change.detach()
