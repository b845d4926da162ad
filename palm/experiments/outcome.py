"""What the runs of several ways to train say about them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from palm.core.errors import PalmError
from palm.core.io import parse_json, wrap_read_errors
from palm.core.logging import Printed
from palm.experiments.statistics import LEVEL, Difference, holm, more_seeds, paired_difference, t_quantile
from palm.metrics import METRICS, Metric
from palm.metrics.resampling import Floats, Pair, resampled_scores

REFERENCE = "together"

STAGED = "staged"
"""The way that trains in the `stages` of the configuration."""

ALONE = "alone"
"""The first word of the name of a way that trains a target by itself."""

COMPARE_FORMAT = "palm-comparison"
COMPARE_VERSION = 4
RESAMPLES = 2000

MOST_LETTERS = 120
"""Maximum length of a verdict; everything else is in the table."""


@dataclass(frozen=True)
class SeedScores:
    """The scores of a way on a task's test rows.

    Args:
        per_seed: in the order of the seeds.
        mean: over seeds.
        deviation: standard deviation over seeds.
    """

    per_seed: Sequence[float]
    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.deviation:.4f}"


@dataclass(frozen=True)
class Way:
    """One way of training, and what its runs gave.

    Args:
        name: of its runs: `together`, `alone-slot`, `without-mlm`, or a name in `also`.
        tasks: the tasks that it trains, in the configuration's order.
        steps: task -> planned steps.
        updates: optimizer steps of a run, each of which may train several tasks.
        changes: settings of the whole run in which it differs from its configuration.
        is_whole: whether it trains all tasks, and so is judged against every target alone.
        seconds: mean duration of a run.
        runs: the names of the folders of its runs, in the order of the seeds.
        scores: target -> its scores.
    """

    name: str
    tasks: Sequence[str]
    steps: Mapping[str, int]
    updates: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False
    seconds: float = 0.0
    runs: Sequence[str] = ()
    scores: Mapping[str, SeedScores] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """True if it trains a target by itself."""
        return self.name.startswith(f"{ALONE}-")


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

    @property
    def score(self) -> str:
        """The name of the metric's main number, as evaluations have it."""
        return METRICS[self.metric].main


@dataclass(frozen=True)
class Answer:
    """One comparison of a target between two ways of training.

    Args:
        target: the task.
        way: the name of the first way.
        against: the name of the second way.
        unit: of the difference.
        difference: way - against; above 0, the way is better.
        judged: whether it enters the verdicts; of two controls alone, only the better one does.
        comparisons: the number of comparisons for which its interval and p-value are corrected: all planned
            ones, or all with ways of `also`.
        p_corrected: the p-value after that correction.
        direction: 1 if the way is better, -1 if it is worse, 0 if even the p-value before the correction does
            not support either.
        is_certain: whether the corrected p-value supports it.
        more_seeds: about how many more seeds would make a difference of this size certain; None if it is
            certain, or too small for that.
    """

    target: str
    way: str
    against: str
    unit: str
    difference: Difference
    judged: bool
    comparisons: int = 1
    p_corrected: float = 1.0
    direction: int = 0
    is_certain: bool = False
    more_seeds: int | None = None

    def words(self, better: str = "better", worse: str = "worse", sign: int = 1) -> str:
        """Return the word for its direction times `sign`, after `perhaps` if it is not certain."""
        if self.direction == 0:
            return "undecided" if self.difference.standard_error else "no difference"
        word = better if sign * self.direction > 0 else worse
        return word if self.is_certain else f"perhaps {word}"


@dataclass(frozen=True)
class Outcome(Printed):
    """A comparison; `print` shows it as tables with its verdicts.

    Args:
        equal: what is equal in all ways, in words and numbers.
        seeds: of the runs of every way.
        tests: target -> the rows that it was compared on.
        ways: the ways of training, first the one with all tasks.
        answers: the comparisons.
    """

    equal: str
    seeds: Sequence[int]
    tests: Mapping[str, Scoring]
    ways: Sequence[Way]
    answers: Sequence[Answer]

    @property
    def auxiliaries(self) -> dict[str, dict[str, str]]:
        """Auxiliary -> target -> `helpful`, `harmful`, either after `perhaps`, `undecided`, `no difference`.

        An auxiliary is judged by the way that leaves out only it.
        """
        left_out = {way.name: set(self.ways[0].tasks).difference(way.tasks) for way in self.ways}
        found: dict[str, dict[str, str]] = {}
        for answer in self.answers:
            for other, reference, sign in (
                (answer.way, answer.against, -1),
                (answer.against, answer.way, 1),
            ):
                if answer.judged and reference == REFERENCE and len(left_out[other]) == 1:
                    (auxiliary,) = left_out[other]
                    found.setdefault(auxiliary, {})[answer.target] = answer.words("helpful", "harmful", sign)
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        """Target -> its verdict in one line: each way against the target alone, then each auxiliary.

        What does not fit into `MOST_LETTERS` is counted instead of named, and the table has it.
        """
        auxiliaries = self.auxiliaries
        found = {}
        for target in self.tests:
            own = [each for each in self.answers if each.target == target and each.judged]
            alone = [each for each in own if each.against.startswith(f"{ALONE}-")]
            effects = {name: words[target] for name, words in auxiliaries.items() if target in words}
            found[target] = _verdict(target, alone, effects)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return all of it, JSON-ready."""
        found = asdict(self) | {"auxiliaries": self.auxiliaries, "verdicts": self.verdicts}
        for answer, each in zip(self.answers, found["answers"], strict=True):
            each["verdict"] = answer.words()
        for target, on in self.tests.items():
            found["tests"][target]["metric"] = on.score
        return {"format": COMPARE_FORMAT, "version": COMPARE_VERSION, **json.loads(json.dumps(found))}

    def rows(self) -> list[list[str]]:
        """Return the comparisons as a table with a header."""
        head = ["task", "way", "score", "against", "score", "difference", "95 % interval"]
        found = [[*head, "p", "p corrected", "verdict"]]
        scores = {way.name: way.scores for way in self.ways}
        for each in self.answers:
            both = [
                text for name in (each.way, each.against) for text in (name, str(scores[name][each.target]))
            ]
            effect = each.difference
            interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
            p_values = [_p(effect.p_value), _p(each.p_corrected)]
            found.append(
                [each.target, *both, f"{effect.mean:+.2f} {each.unit}", interval, *p_values, each.words()]
            )
        return found

    def parts(self) -> list[str | list[list[str]]]:
        """Return what was compared, the scores, the comparisons and the verdicts."""
        head = ["way", "tasks", "updates", "s/run", *(f"{t}: {on.score}" for t, on in self.tests.items())]
        trained = [
            [
                *(way.name, ", ".join(way.tasks), str(way.updates), f"{way.seconds:.0f}"),
                *(str(way.scores.get(target, "")) for target in self.tests),
            ]
            for way in self.ways
        ]
        tested = (
            f"{task}: {on.rows} rows of {on.file}{' (dev_file)' if on.is_dev else ''}, {on.model} model"
            for task, on in self.tests.items()
        )
        compared = "\n".join([self.equal, *tested])
        mean = f"Mean ± standard deviation over {len(self.seeds)} seeds."
        # The scores are in the table above, and a terminal has 80 columns.
        answers = [[row[k] for k in (0, 1, 3, 5, 6, 8, 9)] for row in self.rows()]
        return [compared, "", [head, *trained], mean, "", answers, "", "\n".join(self.verdicts.values())]


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def _verdict(target: str, alone: Sequence[Answer], auxiliaries: Mapping[str, str]) -> str:
    """Return a line with as much detail as fits; only a very long name is cut."""
    first, *others = alone
    whole, short = (_against_alone(first, is_short) for is_short in (False, True))
    named = [*map(_against_alone, others), *(f"{name} {word}" for name, word in auxiliaries.items())]
    counted = [_counted("other ways", [each.words() for each in others])] if others else []
    counted += [_counted("auxiliaries", auxiliaries.values())] if auxiliaries else []
    more = [f"{len(named)} more in the table"]
    parts = ((whole, *named), (whole, *counted), (short, *counted), (short, *more))
    lines = ["; ".join(each) for each in parts]
    line = next((each for each in lines if len(f"{target}: {each}") <= MOST_LETTERS), lines[-1])
    room = MOST_LETTERS - len(f": {line}")
    return f"{target if len(target) <= room else f'{target[: room - 1]}…'}: {line}"


def _counted(what: str, words: Iterable[str]) -> str:
    return f"{what}: {', '.join(f'{n} {word}' for word, n in Counter(words).items())}"


def _against_alone(answer: Answer, is_short: bool = False) -> str:
    effect = answer.difference
    interval = f"({effect.low:+.1f} to {effect.high:+.1f})"
    seeds = "1 more seed" if answer.more_seeds == 1 else f"{answer.more_seeds} more seeds"
    more = f", about {seeds} would decide" if answer.more_seeds and not is_short else ""
    if answer.direction == 0:
        return f"{answer.way} and alone: {answer.words()} {interval}{more}"
    by = f"{abs(effect.mean):.1f} {answer.unit.split()[0] if is_short else answer.unit} {interval}"
    return f"{answer.way} {answer.words()} than alone by {by}{more}"


Rows = Mapping[str, Mapping[str, Sequence[Sequence[Pair]]]]
"""Target -> way -> for every seed, prediction and truth of every test row."""

Scored = tuple[Floats, Floats]
"""Scores of a way on all rows, float64[seeds], and on resamples of them, float64[resamples, seeds]."""


def outcome_of(
    ways: Sequence[Way],
    rows: Rows,
    tests: Mapping[str, Scoring],
    seeds: Sequence[int],
    equal: str,
    resamples: int = RESAMPLES,
) -> Outcome:
    """Compare ways of training by the predictions of their runs on test rows.

    Args:
        ways: the first is the reference.
        rows: the predictions of all runs.
        tests: target -> the rows that it was compared on.
        seeds: two or more.
        equal: what is equal in all ways, in words.
        resamples: number of resamples of the test rows.

    Raises:
        PalmError: runs predicted different numbers of rows.
    """
    scores: dict[str, dict[str, SeedScores]] = {way.name: {} for way in ways}
    answers = []
    for target, by_way in rows.items():
        metric = METRICS[tests[target].metric]
        scored = _scored(metric, target, by_way, resamples)
        for name, (values, _) in scored.items():
            scores[name][target] = SeedScores(
                values.tolist(), float(values.mean()), float(values.std(ddof=1))
            )
        unit = f"points of {metric.main}" if metric.higher_is_better else metric.main
        for pairs in _pairs([way for way in ways if way.name in by_way]):
            found = [_difference(metric, scored, *pair) for pair in pairs]
            least = min(found, key=lambda each: each.mean)
            answers += [
                Answer(target, *pair, unit, each, judged=each is least)
                for pair, each in zip(pairs, found, strict=True)
            ]
    # Planned comparisons are corrected together, those with ways of `also` apart.
    asked = {way.name for way in ways if way.is_whole} - {REFERENCE, STAGED}
    families = [[each for each in answers if (each.way in asked) == is_asked] for is_asked in (False, True)]
    answers = [each for family in families for each in _corrected(family, tests)]
    return Outcome(
        equal, list(seeds), tests, [replace(way, scores=scores[way.name]) for way in ways], answers
    )


def _pairs(ways: Sequence[Way]) -> Iterator[list[tuple[str, str]]]:
    """Yield lists of pairs to compare; only the worst result of a list is judged.

    Each way of all tasks is compared with the target alone, with its own steps and with as many updates; and
    every other way with the reference.
    """
    alone = [way for way in ways if way.is_alone]
    for way in ways:
        if not way.is_alone and way is not ways[0]:
            yield [(way.name, ways[0].name)]
        if way.is_whole and alone:
            # The second is the one whose number of updates comes closest to that of this way.
            longer = min(alone, key=lambda each: abs(each.updates - way.updates))
            yield [(way.name, control) for control in dict.fromkeys((alone[0].name, longer.name))]


def _scored(
    metric: type[Metric], target: str, by_way: Mapping[str, Sequence[Sequence[Pair]]], resamples: int
) -> dict[str, Scored]:
    """Score ways on all rows and on resamples of them."""
    runs = [pairs for each in by_way.values() for pairs in each]
    if len({len(pairs) for pairs in runs}) > 1:
        raise PalmError(f"task {target!r}: its runs were scored on different numbers of rows")
    scores, resampled = resampled_scores(metric, runs, resamples, np.random.default_rng(0))
    # A score that is not a number is the worst possible one, or the worst seen if there is no such bound.
    both = np.concatenate([scores, resampled.ravel()])
    worst = metric.worst if metric.higher_is_better else float(both.max(initial=0.0, where=np.isfinite(both)))
    ends = np.cumsum([len(each) for each in by_way.values()])[:-1]
    whole = np.split(np.where(np.isfinite(scores), scores, worst), ends)
    parts = np.split(np.where(np.isfinite(resampled), resampled, worst), ends, axis=1)
    return dict(zip(by_way, zip(whole, parts, strict=True), strict=True))


def _difference(metric: type[Metric], scored: Mapping[str, Scored], way: str, against: str) -> Difference:
    factor = 100 / metric.perfect if metric.higher_is_better else -1.0
    pairs = zip(scored[way], scored[against], strict=True)
    return paired_difference(*(factor * (one - other) for one, other in pairs))


def _largest_difference(name: str) -> float:
    metric = METRICS[name]
    return 100 * (1 - metric.worst / metric.perfect) if metric.higher_is_better else math.inf


def _corrected(answers: Sequence[Answer], tests: Mapping[str, Scoring]) -> Iterator[Answer]:
    """Correct p-values and intervals for the number of answers, and decide.

    An interval contains 0 exactly if its corrected p-value decides nothing.
    """
    p_values = holm([answer.difference.p_value for answer in answers])
    for answer, p in zip(answers, p_values, strict=True):
        effect = answer.difference
        # The level that Holm's method sets for this p-value, so that interval and verdict never disagree.
        level = LEVEL * effect.p_value / p if effect.p_value else LEVEL / len(answers)
        half = t_quantile(1 - level / 2, len(effect.per_seed) - 1) * effect.standard_error
        most = _largest_difference(tests[answer.target].metric)
        low = max(effect.mean - half, -most)
        high = min(effect.mean + half, most)
        direction = 0 if effect.p_value >= LEVEL else 1 if effect.mean > 0 else -1
        yield replace(
            answer,
            difference=replace(effect, low=low, high=high),
            comparisons=len(answers),
            p_corrected=p,
            direction=direction,
            is_certain=p < LEVEL,
            more_seeds=None if p < LEVEL else more_seeds(effect, level),
        )


def read_rows(path: Path) -> list[Pair]:
    """Read prediction and truth of every row that a run was scored on.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    with wrap_read_errors(path), path.open("rb") as file:
        return [(line["prediction"], line["truth"]) for line in map(parse_json, file)]
