"""Ways to train, and what their runs say about them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from palm.core.errors import PalmError
from palm.core.io import parse_json, wrap_read_errors
from palm.core.logging import aligned
from palm.experiments.statistics import (
    LEVEL,
    Difference,
    holm,
    paired_difference,
    t_quantile,
)
from palm.metrics import METRICS, Metric
from palm.metrics.resampling import Floats, Pair, resampled_scores
from palm.mixing import MixRatio
from palm.train.planning import StepPlan

REFERENCE = "together"

STAGED = "staged"
"""The variant that trains in the `stages` of the configuration."""

ALONE = "alone"
"""The name in a verdict of a target that is trained by itself."""

ALIKE = 0.05
"""The share by which numbers of updates may differ and still count as equal."""


@dataclass(frozen=True)
class Variant:
    """One way of training.

    Args:
        name: of its runs.
        label: its name in a verdict: `alone`, `without mlm`.
        tasks: the tasks that it trains, in the configuration's order.
        changes: settings of the whole run in which it differs.
        is_way: whether it trains all tasks, and so is judged against every target alone.
    """

    name: str
    label: str
    tasks: Sequence[str]
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_way: bool = False

    @property
    def is_alone(self) -> bool:
        """True if it trains a target by itself."""
        return not self.is_way and self.label.startswith(ALONE)


@dataclass(frozen=True)
class Length:
    """The length of a variant's runs.

    Args:
        num_epochs: of its main task; None for as many as `max_steps` allows.
        steps: task -> planned steps.
        total: updates, that is optimizer steps of the run, each of which may train several tasks.
        max_steps: upper limit of the updates.
    """

    num_epochs: float | None
    steps: Mapping[str, int]
    total: int
    max_steps: int | None = None


def variants_of(tasks: Mapping[str, bool]) -> list[Variant]:
    """Return the variants: all tasks together (the reference), each target alone, and without each auxiliary.

    If two variants would train the same tasks, only the first is returned.

    Args:
        tasks: name -> whether it is a target, in the configuration's order.
    """
    found = [Variant(REFERENCE, REFERENCE, list(tasks), is_way=True)]
    found += [Variant(f"{ALONE}-{name}", ALONE, [name]) for name, is_target in tasks.items() if is_target]
    for name, is_target in tasks.items():
        if not is_target:
            rest = [other for other in tasks if other != name]
            found.append(Variant(f"without-{name}", f"without {name}", rest))
    first = {tuple(variant.tasks): variant for variant in reversed(found)}
    return [variant for variant in found if first[tuple(variant.tasks)] is variant]


def lengths_of(variants: Sequence[Variant], whole: StepPlan, num_epochs: float | None) -> list[Length]:
    """Choose the length of every variant so that each target has the same steps in all of them.

    Args:
        variants: the ways of training, first the one with all tasks.
        whole: the plan of the run of all tasks.
        num_epochs: of the main task in that run.
    """
    parts = (part_of(whole, variant.tasks) for variant in variants[1:])
    return [length_of(whole, num_epochs), *(fitted(part, num_epochs, whole) for part in parts)]


def length_of(plan: StepPlan, num_epochs: float | None) -> Length:
    """Return the length of a planned run."""
    return Length(num_epochs, plan.expected_steps, plan.total_steps, plan.max_steps)


def fitted(plan: StepPlan, num_epochs: float | None, whole: StepPlan) -> Length:
    """Choose the length of a run so that each target has the same steps as in the run of all tasks.

    Args:
        plan: of the run, with its expected steps.
        num_epochs: of its main task, used if that results in the same steps.
        whole: the plan of the run of all tasks.
    """
    wanted = {task.name: whole.expected_steps[task.name] for task in plan.tasks if task.is_target}
    per_epoch = plan.main.mix_ratio * plan.main.steps_per_epoch
    main = wanted[plan.main.name]
    # The quotient, multiplied and truncated again, may be a step short; with half a step more it is not.
    epochs = [main / per_epoch, (main + 0.5) / per_epoch]
    candidates: list[tuple[float | None, int | None]] = [(each, None) for each in epochs]
    candidates.append((None, plan.total_steps))
    if num_epochs is not None:
        candidates.insert(0, (num_epochs, None))
    lengths = [length_of(planned(plan, *each), each[0]) for each in candidates]
    return min(lengths, key=lambda length: sum(abs(length.steps[name] - n) for name, n in wanted.items()))


def controls_of(ways: Sequence[tuple[Variant, Length]], whole: StepPlan) -> list[tuple[Variant, Length]]:
    """Return variants of every target alone with as many updates as each way of all tasks, if missing."""
    found: list[tuple[Variant, Length]] = []
    for way, length in ways:
        for target in (task.name for task in whole.tasks if task.is_target and way.is_way):
            alone = [own for variant, own in [*ways, *found] if variant.is_alone and target in variant.tasks]
            if all(abs(own.total - length.total) > ALIKE * length.total for own in alone):
                plan = planned(part_of(whole, [target]), None, length.total)
                name = f"{ALONE}-{target}-{length.total}-updates"
                label = f"{ALONE} for {length.total} updates"
                found.append((Variant(name, label, [target]), length_of(plan, None)))
    return found


def part_of(whole: StepPlan, names: Sequence[str]) -> StepPlan:
    """Return the plan of some of the tasks, with the same steps as among all, and without a step limit.

    Tasks that share the rows of one that is missing are drawn themselves. A task by itself has no mixing.
    """
    tasks = [
        replace(task, share_rows_with=task.share_rows_with if task.share_rows_with in names else None)
        for task in whole.tasks
        if task.name in names
    ]
    if len(tasks) == 1:
        return StepPlan(tasks=[replace(tasks[0], mix_ratio=1.0)], mixing=MixRatio())
    part = replace(whole, tasks=tasks, max_steps=None)
    return replace(part, tasks_per_step=min(whole.count, len(part.primary_tasks)))


def planned(plan: StepPlan, num_epochs: float | None, max_steps: int | None) -> StepPlan:
    """Return the plan of a run with another length."""
    return replace(plan, max_steps=max_steps).over_epochs(num_epochs)


COMPARE_FORMAT = "palm-comparison"
COMPARE_VERSION = 2
RESAMPLES = 2000

MOST_LETTERS = 120
"""Length of a verdict; everything else is in the table."""


@dataclass(frozen=True)
class Scoring:
    """The rows that a task is compared on.

    Args:
        file: the file with labels.
        metric: the score that decides.
        rows: number of rows in the file.
        model: which model was scored, `best` or `last`.
        is_dev: whether the file is the task's dev_file.
    """

    file: str
    metric: str
    rows: int
    model: str
    is_dev: bool


@dataclass(frozen=True)
class SeedScores:
    """The scores of a variant on a task's test rows.

    Args:
        per_seed: in the order of the seeds.
        mean: over seeds.
        deviation: standard deviation over seeds.
        standard_error: of the mean, `deviation / sqrt(seeds)`.
    """

    per_seed: Sequence[float]
    mean: float
    deviation: float
    standard_error: float

    @classmethod
    def of(cls, values: Floats) -> SeedScores:
        """Create it from the scores of several seeds, float64[seeds]."""
        deviation = float(values.std(ddof=1))
        return cls(values.tolist(), float(values.mean()), deviation, deviation / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.deviation:.4f}"


@dataclass(frozen=True)
class Trained:
    """A variant and its scores.

    Args:
        variant: the way of training.
        length: of its runs, as planned.
        seconds: mean duration of a run.
        scores: target -> its scores.
    """

    variant: Variant
    length: Length
    seconds: float
    scores: Mapping[str, SeedScores]


@dataclass(frozen=True)
class Answer:
    """One comparison of a target between two ways of training.

    Args:
        target: the task.
        way: the first way.
        against: the second way.
        unit: of the difference.
        difference: way - against; above 0, the way is better.
        judged: whether it enters the verdicts; of two controls alone, only the better one does.
        comparisons: the number of comparisons for which its interval and p-value are corrected: all planned
            ones, or all with variants of `also`.
        p_corrected: the p-value after that correction.
        direction: 1 if the way is better, -1 if it is worse, 0 if even the p-value before the correction does
            not support either.
        is_certain: whether the corrected p-value supports it.
    """

    target: str
    way: Variant
    against: Variant
    unit: str
    difference: Difference
    judged: bool
    comparisons: int = 1
    p_corrected: float = 1.0
    direction: int = 0
    is_certain: bool = False

    def words(self, better: str, worse: str, sign: int = 1) -> str:
        """Return the word for its direction times `sign`, after `perhaps` if it is not certain."""
        if self.direction == 0:
            return "no difference"
        word = better if sign * self.direction > 0 else worse
        return word if self.is_certain else f"perhaps {word}"

    @property
    def verdict(self) -> str:
        """`better` or `worse`, perhaps after `perhaps`, or `no difference`."""
        return self.words("better", "worse")

    @property
    def interval(self) -> str:
        """The 95 % interval of the difference."""
        return f"{self.difference.low:+.2f} to {self.difference.high:+.2f}"


@dataclass(frozen=True)
class Outcome:
    """A comparison; `print` shows it as tables with its verdicts.

    Args:
        equal: what is equal in all variants, in words and numbers.
        seeds: of the runs of every variant.
        tests: target -> the rows that it was compared on.
        variants: the ways of training.
        answers: the comparisons.
    """

    equal: str
    seeds: Sequence[int]
    tests: Mapping[str, Scoring]
    variants: Sequence[Trained]
    answers: Sequence[Answer]

    @property
    def auxiliaries(self) -> dict[str, dict[str, str]]:
        """Auxiliary -> target -> `helpful`, `harmful`, either after `perhaps`, or `no difference`.

        An auxiliary is judged by the variant that leaves out only it.
        """
        everything = set(self.variants[0].variant.tasks)
        found: dict[str, dict[str, str]] = {}
        for answer in filter(lambda each: each.judged, self.answers):
            for other, sign in ((answer.way, -1), (answer.against, 1)):
                left_out = everything.difference(other.tasks)
                if len(left_out) == 1 and REFERENCE in (answer.way.name, answer.against.name):
                    own = found.setdefault(left_out.pop(), {})
                    own[answer.target] = answer.words("helpful", "harmful", sign)
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        """Target -> its verdict in one line."""
        return {target: _one_line(target, self) for target in self.tests}

    def as_json(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        found = asdict(self) | {"auxiliaries": self.auxiliaries, "verdicts": self.verdicts}
        for answer, each in zip(self.answers, found["answers"], strict=True):
            each |= {"way": answer.way.name, "against": answer.against.name, "verdict": answer.verdict}
        return {"format": COMPARE_FORMAT, "version": COMPARE_VERSION, **json.loads(json.dumps(found))}

    def rows(self) -> list[list[str]]:
        """Return the comparisons as a table with a header."""
        head = ["task", "way", "score", "against", "score", "difference", "95 % interval"]
        found = [[*head, "p", "p corrected", "verdict"]]
        scores = {trained.variant.name: trained.scores for trained in self.variants}
        for answer in self.answers:
            target = answer.target
            both = [(way.label, str(scores[way.name][target])) for way in (answer.way, answer.against)]
            difference = f"{answer.difference.mean:+.2f} {answer.unit}"
            p_values = [_p(answer.difference.p_value), _p(answer.p_corrected)]
            found.append([target, *both[0], *both[1], difference, answer.interval, *p_values, answer.verdict])
        return found

    def __str__(self) -> str:
        head = ["variant", "tasks", "updates", "s/run", *(f"{t}: {self.tests[t].metric}" for t in self.tests)]
        trained = [
            [
                *(each.variant.name, ", ".join(each.variant.tasks)),
                *(str(each.length.total), f"{each.seconds:.0f}"),
                *(str(each.scores.get(target, "")) for target in self.tests),
            ]
            for each in self.variants
        ]
        tested = (
            f"{task}: {on.rows} rows of {on.file}{' (dev_file)' if on.is_dev else ''}, {on.model} model"
            for task, on in self.tests.items()
        )
        mean = f"Mean ± standard deviation over {len(self.seeds)} seeds."
        tables = [*aligned([head, *trained]), mean, "", *aligned(self.rows())]
        return "\n".join([self.equal, *tested, "", *tables, "", *self.verdicts.values()])


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def _one_line(target: str, outcome: Outcome) -> str:
    """Return the verdict about a target: each way against the target alone, then each auxiliary."""
    parts = [
        _against_alone(answer)
        for answer in outcome.answers
        if answer.target == target and answer.judged and answer.against.is_alone
    ]
    parts += [f"{task} {own[target]}" for task, own in outcome.auxiliaries.items() if target in own]
    line = f"{target}: {parts[0]}"
    for part in parts[1:]:
        if len(line) + len(part) > MOST_LETTERS - len("; ; …"):
            return f"{line}; …"
        line += f"; {part}"
    return line


def _against_alone(answer: Answer) -> str:
    found = answer.difference
    interval = f"({found.low:+.1f} to {found.high:+.1f})"
    if answer.direction == 0:
        return f"{answer.way.label} and alone: no difference {interval}"
    return f"{answer.way.label} {answer.verdict} than alone by {abs(found.mean):.1f} {answer.unit} {interval}"


Rows = Mapping[str, Mapping[str, Sequence[Sequence[Pair]]]]
"""Target -> variant -> for every seed, prediction and truth of every test row."""

Scored = tuple[Floats, Floats]
"""Scores of a variant on all rows, float64[seeds], and on resamples of them, float64[resamples, seeds]."""


def outcome_of(
    variants: Sequence[tuple[Variant, Length, float]],
    rows: Rows,
    tests: Mapping[str, Scoring],
    seeds: Sequence[int],
    equal: str,
    resamples: int = RESAMPLES,
) -> Outcome:
    """Compare variants by the predictions of their runs on test rows.

    Args:
        variants: with their lengths, and the mean seconds of a run; the first is the reference.
        rows: the predictions of all runs.
        tests: target -> the rows that it was compared on.
        seeds: two or more.
        equal: what is equal in all variants, in words.
        resamples: number of resamples of the test rows.

    Raises:
        PalmError: runs predicted different numbers of rows.
    """
    scores: dict[str, dict[str, SeedScores]] = {variant.name: {} for variant, _, _ in variants}
    answers = []
    for target, by_variant in rows.items():
        metric = METRICS[tests[target].metric]
        scored = _scored(metric, target, by_variant, resamples)
        for name, (values, _) in scored.items():
            scores[name][target] = SeedScores.of(values)
        for pairs in _pairs([(variant, each) for variant, each, _ in variants if variant.name in by_variant]):
            found = [_difference(metric, scored, *pair) for pair in pairs]
            least = min(found, key=lambda each: each.mean)
            unit = f"points of {metric.main}" if metric.higher_is_better else metric.main
            answers += [
                Answer(target, *pair, unit, each, judged=each is least)
                for pair, each in zip(pairs, found, strict=True)
            ]
    asked = {variant.name for variant, _, _ in variants if variant.is_way} - {REFERENCE, STAGED}
    answers = _corrected_apart(answers, asked, tests)
    trained = [Trained(*way, scores[way[0].name]) for way in variants]
    return Outcome(equal, list(seeds), tests, trained, answers)


def _pairs(known: Sequence[tuple[Variant, Length]]) -> Iterator[list[tuple[Variant, Variant]]]:
    """Yield lists of pairs to compare; only the worst result of a list is judged.

    Each way of all tasks is compared with the target alone, with its own steps and with as many updates; and
    every other variant with the reference.
    """
    alone = [(variant, length.total) for variant, length in known if variant.is_alone]
    reference = known[0][0]
    for variant, length in known:
        if not variant.is_alone and variant is not reference:
            yield [(variant, reference)]
        if variant.is_way and alone:
            own, _ = alone[0]
            # The one whose number of updates comes closest to that of this way.
            longer, _ = min(alone, key=lambda each: abs(each[1] - length.total))
            yield [(variant, control) for control in ((own,) if longer is own else (own, longer))]


def _scored(
    metric: type[Metric], target: str, by_variant: Mapping[str, Sequence[Sequence[Pair]]], resamples: int
) -> dict[str, Scored]:
    """Score variants on all rows and on resamples of them."""
    runs = [pairs for each in by_variant.values() for pairs in each]
    if len({len(pairs) for pairs in runs}) > 1:
        raise PalmError(f"task {target!r}: runs were scored on different numbers of rows; use --overwrite")
    scores, resampled = resampled_scores(metric, runs, resamples, np.random.default_rng(0))
    # A score that is not a number is the worst possible one, or the worst seen if there is no such bound.
    both = np.concatenate([scores, resampled.ravel()])
    worst = metric.worst if metric.higher_is_better else float(both.max(initial=0.0, where=np.isfinite(both)))
    ends = np.cumsum([len(each) for each in by_variant.values()])[:-1]
    whole = np.split(np.where(np.isfinite(scores), scores, worst), ends)
    parts = np.split(np.where(np.isfinite(resampled), resampled, worst), ends, axis=1)
    return dict(zip(by_variant, zip(whole, parts, strict=True), strict=True))


def _difference(
    metric: type[Metric], scored: Mapping[str, Scored], way: Variant, against: Variant
) -> Difference:
    factor = 100 / metric.perfect if metric.higher_is_better else -1.0
    pairs = zip(scored[way.name], scored[against.name], strict=True)
    return paired_difference(*(factor * (one - other) for one, other in pairs))


def _corrected_apart(
    answers: Sequence[Answer], asked: Collection[str], tests: Mapping[str, Scoring]
) -> list[Answer]:
    """Correct planned comparisons together, and those with variants of `also` separately."""
    families: dict[bool, list[Answer]] = {False: [], True: []}
    for each in answers:
        families[each.way.name in asked].append(each)
    return [each for family in families.values() for each in _corrected(family, tests)]


def _corrected(answers: Sequence[Answer], tests: Mapping[str, Scoring]) -> list[Answer]:
    """Correct p-values and intervals for the number of answers, and decide.

    An interval contains 0 exactly if its corrected p-value decides nothing.
    """
    found = []
    p_values = holm([answer.difference.p_value for answer in answers])
    for answer, p in zip(answers, p_values, strict=True):
        effect = answer.difference
        # The level that Holm's method sets for this p-value, so that interval and verdict never disagree.
        level = LEVEL * effect.p_value / p if effect.p_value else LEVEL / len(answers)
        half = t_quantile(1 - level / 2, len(effect.per_seed) - 1) * effect.standard_error
        most = _largest_difference(METRICS[tests[answer.target].metric])
        low = max(effect.mean - half, -most)
        high = min(effect.mean + half, most)
        direction = 0 if effect.p_value >= LEVEL else 1 if effect.mean > 0 else -1
        found.append(
            replace(
                answer,
                difference=replace(effect, low=low, high=high),
                comparisons=len(answers),
                p_corrected=p,
                direction=direction,
                is_certain=p < LEVEL,
            )
        )
    return found


def _largest_difference(metric: type[Metric]) -> float:
    """Return the largest possible difference of a metric between two ways, in the unit of answers."""
    return 100 * (1 - metric.worst / metric.perfect) if metric.higher_is_better else math.inf


def read_rows(path: Path) -> list[Pair]:
    """Read prediction and truth of every row that a run was scored on.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    with wrap_read_errors(path), path.open("rb") as file:
        return [(line["prediction"], line["truth"]) for line in map(parse_json, file)]
