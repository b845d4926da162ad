"""The result of a comparison: scores of every variant, differences with their uncertainty, verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from palm.core.errors import PalmError
from palm.core.files.records import check_unchanged
from palm.core.files.untrusted import parse_json, wrap_read_errors
from palm.core.shown import aligned
from palm.experiments.comparison.statistics import (
    LEVEL,
    Difference,
    holm,
    paired_difference,
    t_quantile,
)
from palm.experiments.comparison.variants import ALONE, REFERENCE, STAGED, Budget, Length, Variant
from palm.metrics import METRICS, Metric
from palm.metrics.resampling import Floats, Pair, resampled_scores

COMPARE_FORMAT = "palm-comparison"
COMPARE_VERSION = 1
RESAMPLES = 2000


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
        reference: the name of the first way: `together`, `staged`, or one of `also`.
        reference_label: its name in a verdict.
        variant: the name of the other variant.
        label: its name in a verdict.
        unit: of the difference.
        difference: reference - other variant; above 0, the reference is better.
        comparisons: the number of comparisons for which its interval and p-value are corrected: all planned
            ones, or all with variants of `also`.
        p_corrected: the p-value after that correction.
        verdict: of the reference: `better` or `worse`; the same after `perhaps` if only the p-value before
            the correction supports it; or `no difference`.
        judged: whether it enters the verdicts; of two controls alone, only the better one does.
    """

    target: str
    reference: str
    reference_label: str
    variant: str
    label: str
    unit: str
    difference: Difference
    comparisons: int = 1
    p_corrected: float = 1.0
    verdict: str = "no difference"
    judged: bool = True


@dataclass(frozen=True)
class Outcome:
    """A comparison; `print` shows it as tables with its verdicts.

    Args:
        budget: what was equal: `target` or `total` steps.
        equal: the same in words and numbers.
        seeds: of the runs of every variant.
        tests: target -> the rows that it was compared on.
        variants: the ways of training.
        answers: the comparisons.
        verdicts: target -> its verdict, in words.
        helpers: auxiliary -> target -> `helpful`, `harmful`, either of them after `perhaps`, or
            `no difference`.
    """

    budget: Budget
    equal: str
    seeds: Sequence[int]
    tests: Mapping[str, Scoring]
    variants: Sequence[Trained]
    answers: Sequence[Answer]
    verdicts: Mapping[str, str]
    helpers: Mapping[str, Mapping[str, str]]

    def as_json(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        return {"format": COMPARE_FORMAT, "version": COMPARE_VERSION, **json.loads(json.dumps(asdict(self)))}

    def __str__(self) -> str:
        head = ["variant", "tasks", "updates", "s/run", *(f"{t}: {self.tests[t].metric}" for t in self.tests)]
        rows = [head]
        for each in self.variants:
            found = [each.scores.get(target) for target in self.tests]
            cells = ["" if own is None else f"{own.mean:.4f} ± {own.deviation:.4f}" for own in found]
            way = each.variant
            rows.append(
                [way.name, ", ".join(way.tasks), str(each.length.total), f"{each.seconds:.0f}", *cells]
            )
        compared = [
            ["task", "variant", "against", "difference", "95 % interval", "p", "p corrected", "verdict"]
        ]
        for answer in self.answers:
            effect = answer.difference
            interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
            numbers = [f"{effect.mean:+.2f} {answer.unit}", interval, _p(effect.p_value)]
            ways = [answer.reference_label, answer.label]
            compared.append([answer.target, *ways, *numbers, _p(answer.p_corrected), answer.verdict])
        tested = (
            f"{task}: {on.rows} rows of {on.file}{' (dev_file)' if on.is_dev else ''}, {on.model} model"
            for task, on in self.tests.items()
        )
        mean = f"Mean ± standard deviation over {len(self.seeds)} seeds."
        verdicts = (f"{task}: {verdict}" for task, verdict in self.verdicts.items())
        return "\n".join(
            [self.equal, *tested, "", *aligned(rows), mean, "", *aligned(compared), "", *verdicts]
        )


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


Rows = Mapping[str, Mapping[str, Sequence[Sequence[Pair]]]]
"""Target -> variant -> for every seed, prediction and truth of every test row."""

Scored = tuple[Floats, Floats]
"""Scores of a variant on all rows, float64[seeds], and on resamples of them, float64[resamples, seeds]."""


def _corrected_apart(
    answers: Sequence[Answer], asked: Collection[str], tests: Mapping[str, Scoring]
) -> list[Answer]:
    """Correct planned comparisons together, and those with variants of `also` separately."""
    families: dict[bool, list[Answer]] = {False: [], True: []}
    for each in answers:
        families[each.reference in asked or each.variant in asked].append(each)
    return [each for family in families.values() for each in _corrected(family, tests)]


def outcome_of(
    variants: Sequence[tuple[Variant, Length, float]],
    rows: Rows,
    tests: Mapping[str, Scoring],
    seeds: Sequence[int],
    budget: Budget,
    equal: str,
    resamples: int = RESAMPLES,
) -> Outcome:
    """Compare variants by the predictions of their runs on test rows.

    Args:
        variants: with their lengths, and the mean seconds of a run; the first is the reference.
        rows: the predictions of all runs.
        tests: target -> the rows that it was compared on.
        seeds: two or more.
        budget, equal: what was equal, and the same in words.
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
        known = [(variant, length) for variant, length, _ in variants if variant.name in by_variant]
        for pairs in _pairs(known):
            found = [_answer(target, *pair, metric, scored) for pair in pairs]
            least = min(found, key=lambda answer: answer.difference.mean)
            answers += [replace(answer, judged=answer is least) for answer in found]
    asked = {variant.name for variant, _, _ in variants if variant.is_way} - {REFERENCE, STAGED}
    answers = _corrected_apart(answers, asked, tests)
    trained = [Trained(*way, scores[way[0].name]) for way in variants]
    verdicts = {
        target: "; ".join(_verdict_text(a, len(seeds)) for a in answers if a.target == target and a.judged)
        for target in rows
    }
    return Outcome(budget, equal, list(seeds), tests, trained, answers, verdicts, _helpers(variants, answers))


def _pairs(known: Sequence[tuple[Variant, Length]]) -> Iterator[list[tuple[Variant, Variant]]]:
    """Yield lists of pairs to compare; only the worst result of a list is judged.

    Each way of all tasks is compared with the target alone, with its own steps and with as many updates; and
    the reference is compared with every other variant.
    """
    alone = [(variant, length.total) for variant, length in known if variant.is_alone]
    reference = known[0][0]
    for variant, length in known:
        if not variant.is_alone and variant is not reference:
            yield [(reference, variant)]
        if variant.is_way and alone:
            own, _ = alone[0]
            # The one whose number of updates comes closest to that of this way.
            longer, _ = min(alone, key=lambda each: abs(each[1] - length.total))
            yield [(variant, control) for control in ((own,) if longer is own else (own, longer))]


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
        direction = "better" if effect.mean > 0 else "worse"
        verdict = "no difference" if effect.p_value >= LEVEL else f"perhaps {direction}"
        found.append(
            replace(
                answer,
                difference=replace(effect, low=low, high=high),
                comparisons=len(answers),
                p_corrected=p,
                verdict=direction if p < LEVEL else verdict,
            )
        )
    return found


def _largest_difference(metric: type[Metric]) -> float:
    """Return the largest possible difference of a metric between two ways, in the unit of answers."""
    return 100 * (1 - metric.worst / metric.perfect) if metric.higher_is_better else math.inf


def _scored(
    metric: type[Metric], target: str, by_variant: Mapping[str, Sequence[Sequence[Pair]]], resamples: int
) -> dict[str, Scored]:
    """Score variants on all rows and on resamples of them."""
    runs = [pairs for each in by_variant.values() for pairs in each]
    if len({len(pairs) for pairs in runs}) > 1:
        raise PalmError(f"task {target!r}: runs were scored on different numbers of rows; use --overwrite")
    scores, resampled = resampled_scores(metric, runs, resamples, np.random.default_rng(0))
    ends = np.cumsum([len(each) for each in by_variant.values()])[:-1]
    # A score that is not a number counts as 0, as it does when the best model is chosen.
    whole = np.split(np.nan_to_num(scores, nan=0.0), ends)
    parts = np.split(np.nan_to_num(resampled, nan=0.0), ends, axis=1)
    return dict(zip(by_variant, zip(whole, parts, strict=True), strict=True))


def _answer(
    target: str,
    reference: Variant,
    variant: Variant,
    metric: type[Metric],
    scored: Mapping[str, Scored],
) -> Answer:
    factor = 100 / metric.perfect if metric.higher_is_better else -1.0
    unit = f"points of {metric.main}" if metric.higher_is_better else metric.main
    pairs = zip(scored[reference.name], scored[variant.name], strict=True)
    return Answer(
        target=target,
        reference=reference.name,
        reference_label=reference.label,
        variant=variant.name,
        label=variant.label,
        unit=unit,
        difference=paired_difference(*(factor * (one - other) for one, other in pairs)),
    )


def _verdict_text(answer: Answer, seeds: int) -> str:
    """Return a verdict in words: of a way against a target alone, else of a variant against the reference."""
    found = answer.difference
    way = answer.reference_label
    is_alone = answer.label.startswith(ALONE)
    interval = f"({found.low:+.1f} to {found.high:+.1f})"
    if answer.verdict == "no difference":
        about = f"{way} and {answer.label}" if is_alone else answer.label
        return f"{about}: no difference that {seeds} seeds can show {interval}"
    by = f"by {abs(found.mean):.1f} {answer.unit} {interval}"
    if answer.verdict.startswith("perhaps"):
        corrected = f"after correction for {answer.comparisons} comparisons (p {_p(answer.p_corrected)})"
        by += f", not certain {corrected}"
    if is_alone:
        return f"{way} is {answer.verdict} than {answer.label} {by}"
    opposite = {"better": "worse", "worse": "better"}
    *perhaps, word = answer.verdict.split()
    return f"{answer.label}: {' '.join([*perhaps, opposite[word]])} {by}"


def _helpers(
    variants: Sequence[tuple[Variant, Length, float]], answers: Sequence[Answer]
) -> dict[str, dict[str, str]]:
    """Judge each auxiliary by the variant that leaves out only it: auxiliary -> target -> word."""
    everything = set(variants[0][0].tasks)
    left_out = {variant.name: everything - {*variant.tasks} for variant, _, _ in variants}
    found: dict[str, dict[str, str]] = {}
    for answer in answers:
        if answer.judged and answer.reference == REFERENCE and len(left_out[answer.variant]) == 1:
            (helper,) = left_out[answer.variant]
            word = answer.verdict.replace("better", "helpful").replace("worse", "harmful")
            found.setdefault(helper, {})[answer.target] = word
    return found


def read_rows(path: Path) -> list[Pair]:
    """Read prediction and truth of every row that a run was scored on.

    Raises:
        StorageError: the file is missing or was changed.
    """
    check_unchanged(path, "restore it, or remove the folder of its run, so that palm trains it again")
    with wrap_read_errors(path), path.open("rb") as file:
        return [(line["prediction"], line["truth"]) for line in map(parse_json, file)]
