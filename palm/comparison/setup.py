"""What a comparison is going to do: its variants and their lengths, its test files, its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.comparison.variants import STAGED, Budget, Length, Variant, lengths_of, variants_of
from palm.config import Config, read_config
from palm.controller.build import build
from palm.controller.document import data_checksums, document, that_count
from palm.controller.plan import Plan, plan
from palm.controller.settings import RunSettings
from palm.controller.stages import StagePlan, absolute_stages, stages_of, steps_of
from palm.core.checks import raise_any
from palm.core.errors import ConfigError
from palm.grid.folder import GridRun
from palm.reader.rows.cache import DataCache


@dataclass(frozen=True)
class Setup:
    """A comparison before its first run.

    Args:
        config: the configuration.
        plan: what its components take.
        settings: of the whole run.
        budget: what is equal in all variants.
        tests: target -> the file that it is compared on.
        model: which model is scored there, `best` or `last`.
        stages: those of the configuration, planned; empty where it has none.
    """

    config: Config
    plan: Plan
    settings: RunSettings
    budget: Budget
    tests: Mapping[str, Path]
    model: str
    stages: Sequence[StagePlan] = ()

    def about(self) -> dict[str, Any]:
        """Everything that its runs depend on, JSON-ready."""
        return {
            "budget": self.budget,
            "model": self.model,
            "test": {name: str(path.absolute()) for name, path in self.tests.items()},
            "settings": that_count(document(self.config, self.plan, self.config.tasks, stages=self._stages)),
            "data": data_checksums(self.plan, self.tests.values()),
        }

    def ways(self) -> list[tuple[Variant, Length]]:
        """The variants, that of all tasks first, and how long each trains.

        Training files are encoded for this, so the data is in the cache before the first run asks for it.
        """
        parts, settings = build(self.plan, self.config.place), self.settings
        cache = None
        if settings.use_data_cache:
            cache = DataCache(settings.data_cache) if settings.data_cache else DataCache.of_user()
        for task in parts.tasks:
            task.open_stream(settings.random_seed, cache=cache)
        variants = variants_of({task.name: task.is_target for task in parts.tasks}, self._stages or ())
        progress = [task.progress() for task in parts.tasks]
        lengths = lengths_of(variants, parts.mixing, progress, settings.num_epochs, self.budget)
        if variants[-1].name == STAGED:
            steps = Counter[str]()
            for own in steps_of(self.stages).values():
                steps.update(own)
            lengths[-1] = Length(settings.num_epochs, steps)
        return list(zip(variants, lengths, strict=True))

    @property
    def _stages(self) -> list[dict[str, Any]] | None:
        return absolute_stages(self.config, self.plan, self.stages) if self.stages else None

    def runs(self, ways: Sequence[tuple[Variant, Length]], seeds: Sequence[int]) -> list[GridRun]:
        """Every variant with the first seed, then with the next.

        Raises:
            ConfigError: what a variant by itself has wrong, such as settings that need other tasks.
        """
        # The steps of a run depend on its number of devices, so all runs have one, unless told otherwise.
        alike = {"num_devices": 1} if self.settings.num_devices == "auto" else {}
        runs = []
        for seed in seeds:
            for variant, length in ways:
                changes = {"num_epochs": length.num_epochs, "random_seed": seed, **alike, **variant.changes}
                settings = document(self.config, self.plan, variant.tasks, **changes)
                name, names = f"{variant.name}-seed{seed}", [t for t in variant.tasks if t in self.tests]
                tests = {task: str(self.tests[task].absolute()) for task in names}
                runs.append(GridRun(name, settings, length.total, tests, self.model))
        for run in runs[: len(ways)]:
            plan(read_config(run.settings, argv=[]), for_train=True)
        return runs

    def equal(self, ways: Sequence[tuple[Variant, Length]]) -> str:
        """What is equal in all variants, in words and numbers."""
        apart = ""
        if self.stages:
            told = ", ".join(f"{name} {steps}" for name, steps in ways[-1][1].steps.items())
            ways, apart = ways[:-1], f" In stages, as they are given: {told}."
        totals = ", ".join(f"{variant.name} {length.total}" for variant, length in ways)
        stops = self.settings.early_stopping_patience > 0
        late = "; early stopping is on, so these are the most that a run has" if stops else ""
        if self.budget == "target":
            each = ", ".join(f"{name} {ways[0][1].steps[name]}" for name in self.tests)
            return f"Equal target steps: {each} in every variant; in total: {totals}{late}.{apart}"
        own = "; ".join(
            f"{variant.name}: {', '.join(f'{name} {steps}' for name, steps in length.steps.items())}"
            for variant, length in ways
        )
        return f"Equal total steps, but for rounding: {totals}. Of tasks: {own}{late}.{apart}"

    def is_dev(self, target: str) -> bool:
        """Whether a target is compared on its dev_file."""
        return self.tests[target] == dev_file_of(self.plan, target)


def setup_of(config: Config, budget: Budget, test: Mapping[str, str | Path], model: str | None) -> Setup:
    """Look at everything that can be wrong before anything is trained.

    Raises:
        ConfigError: all of it, in one report.
    """
    planned = plan(config, for_train=True)
    settings = RunSettings(**planned.settings)
    if len(config.tasks) == 1:
        raise ConfigError(["task_instance names one task; a comparison needs a second one to train it with"])
    tags = settings.target_tag or [1] * len(config.tasks)
    targets = [name for name, tag in zip(config.tasks, tags, strict=True) if tag]
    tests = _test_files(planned, targets, test)
    is_apart = all(path != dev_file_of(planned, name) for name, path in tests.items())
    which = model or ("best" if is_apart else "last")
    return Setup(config, planned, settings, budget, tests, which, stages_of(config, planned))


def _test_files(plan: Plan, targets: Sequence[str], given: Mapping[str, str | Path]) -> dict[str, Path]:
    """Target -> the file that it is compared on.

    Raises:
        ConfigError: a target has none, or one is named for what is no target.
    """
    known = ", ".join(targets)
    problems = [f"test: {name!r} is no target; there are {known}" for name in given if name not in targets]
    found = {}
    for name in targets:
        path = Path(given[name]) if name in given else dev_file_of(plan, name)
        if path is None:
            problems.append(
                f"task {name!r} has no test file and no dev_file; name one with --test {name}=FILE"
            )
        elif not path.is_file():
            problems.append(f"test: no such file: {path}, for task {name!r}")
        else:
            found[name] = path
    raise_any(problems)
    return found


def dev_file_of(plan: Plan, task: str) -> Path | None:
    """The `dev_file` of a task."""
    return next(each.task.get("dev_file") for each in plan.tasks if each.name == task)
