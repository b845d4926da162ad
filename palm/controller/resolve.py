"""A configuration as a `RunConfig`: every component with its settings, all problems in one report."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from palm.backbone import BACKBONES
from palm.backbone.encoder import Encoder
from palm.backbone.low_rank import FROM
from palm.config import Config, read_config, settings_of
from palm.config.config import AUTO, located
from palm.config.conversion import REQUIRED, Consumer
from palm.config.run import LISTED, ComponentConfig, Document, Key, RunConfig, TaskConfig, plain
from palm.config.settings import (
    NO_BATCH_SIZE,
    RunSettings,
    TaskParts,
    TaskSettings,
    setting_problems,
)
from palm.core.component import Registry, text_problem
from palm.core.errors import ConfigError, PalmError, Problem
from palm.metrics import METRICS
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS, ParameterGroups
from palm.optimizer.lr_sched import HORIZON, LR_SCHEDULES
from palm.paradigm import HEADS
from palm.reader import READERS
from palm.reader.labels import Labels
from palm.reader.tables.files import is_data, missing_reason, parts_of, table_of
from palm.train.model_paths import name_problem

# In the order of `palm ls`.
_ALL: list[Registry[Any]] = [READERS, HEADS, BACKBONES, METRICS, MIXINGS, OPTIMIZERS, LR_SCHEDULES, BALANCES]
REGISTRIES = {registry.setting: registry for registry in _ALL}

HIGHEST_RATE = 0.1
HIGHEST_DECAY = 1.0
"""A higher `learning_rate` or `weight_decay` is taken for a mistake, with a warning."""


AS_IT_IS = {
    r"\$\w+|\$\{\w+\}|%\w+%": "palm fills in no variables of the shell",
    r"[^/]*\\[^/]*|(?<=/)[A-Za-z]:(?=/)": "this machine has no drives; write folders with / between them",
    r"(?<=/)[“„«‘]|[”“»’]$": "quotation marks of a word processor belong to the name; write straight ones",
}
"""Part of a path to write to -> the reason why it does not mean what it means elsewhere."""


def doubtful_settings(run: RunConfig) -> Iterator[str]:
    """Yield a line with the remedy for every given setting that has no effect, or an unlikely value."""
    is_evaluated = any(task.settings.is_evaluated for task in run.tasks)
    for name, why in (*_of_run(run.settings, is_evaluated), *_of_values(run)):
        if run.place(name) is not None:
            yield f"{run.placed(name)} {why}"
    for task in run.tasks:
        for name, why in _of_task(task):
            if run.place(name, task.name) is not None:
                yield f"{run.placed(name, task.name)} {why}"


def _of_run(settings: RunSettings, is_evaluated: bool) -> Iterator[tuple[str, str]]:
    every = settings.save_every_n_steps
    is_saved = every is None or max(every, settings.save_infermodel_every_n_steps) > 0
    no_effect = "has no effect:"
    if settings.eval_every_n_steps > 0 and not is_evaluated:
        yield "eval_every_n_steps", f"{no_effect} no task has a dev_file; give one, or leave it out"
    if settings.ema_decay > 0 and not settings.use_ema:
        yield "ema_decay", f"{no_effect} use_ema is off; set use_ema: True, or leave it out"
    if settings.use_ema and not settings.ema_decay:
        why = "ema_decay is 0, so averages are the weights; set it, for instance to 0.999"
        yield "use_ema", f"{no_effect} {why}"
    if settings.keep_last_n > 0 and not is_saved:
        why = "nothing is saved during training; set save_every_n_steps, or leave it out"
        yield "keep_last_n", f"{no_effect} {why}"
    if not settings.use_data_cache:
        yield "data_cache", f"{no_effect} use_data_cache is off; leave one of them out"


def _of_values(run: RunConfig) -> Iterator[tuple[str, str]]:
    optimizer = run.optimizer.settings
    if optimizer.get("learning_rate", 0) > HIGHEST_RATE:
        yield (
            "learning_rate",
            f"is {optimizer['learning_rate']:g}, with which encoders learn nothing; usual are 1e-5 to 5e-4 "
            "with pretrained weights, and 1e-4 to 1e-2 with random ones",
        )
    if optimizer.get("weight_decay", 0) > HIGHEST_DECAY:
        yield "weight_decay", f"is {optimizer['weight_decay']:g}, which removes the weights; usual is 0.01"
    yield from _of_paths(save_path=run.settings.save_path, data_cache=run.settings.data_cache)


def _of_paths(**paths: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the paths to write to whose names have a part that was meant for another program."""
    for name, path in paths.items():
        for pattern, why in AS_IT_IS.items():
            if path is not None and (found := re.search(pattern, path.as_posix())) is not None:
                yield name, f"contains {found[0]!r} as it is: {why}"


def _of_task(task: TaskConfig) -> Iterator[tuple[str, str]]:
    yield from _of_components(task)
    own = task.settings
    if own.metrics and own.dev_file is None:
        yield "metrics", f"has no effect: task {task.name!r} has no dev_file; give one, or leave it out"
    if own.dev_file is not None and own.dev_file == own.train_file:
        yield "dev_file", "is the train_file, so its scores are not those of new rows; give other rows"
    if own.pred_output_path is not None and own.pred_file is None:
        yield "pred_output_path", f"has no effect: task {task.name!r} has no pred_file; give one"
    if own.pred_file is not None and not is_data(own.pred_file):
        yield "pred_file", f"does not exist: {own.pred_file}; training does not need it, prediction will"
    if own.train_file is not None:
        parts = parts_of(table_of(own.train_file))
        if twice := [part.name for part in {*parts} if parts.count(part) > 1]:
            yield "train_file", f"names {', '.join(sorted(twice))} twice; each file is read once"
    yield from _of_paths(pred_output_path=own.pred_output_path)
    yield from _of_labels(task)


def _of_components(task: TaskConfig) -> Iterator[tuple[str, str]]:
    reader = task.reader.settings
    head = task.head.settings
    if reader.get("label_type") in ("real", "count"):
        yield "n_classes", f"has no effect: labels of task {task.name!r} are numbers; leave it out"
    if task.reader.name == "embedding" and head.get("learning_strategy") != "similarity":
        why = "every pair counts as positive; set learning_strategy: similarity"
        yield "label_type", f"has no effect on task {task.name!r}: {why}"
        if task.settings.batch_size == 1:
            yield (
                "batch_size",
                "is 1: a pair without its own negatives has none, so nothing is learned; raise it",
            )
    for name, reason in READERS[task.reader.name].ignored_settings.items():
        if reader.get(name):
            yield name, f"has no effect on task {task.name!r}: {reason}; leave it out"
    if not head.get("use_crf"):
        yield "crf_learning_rate_factor", "has no effect: use_crf is off; set use_crf: True, or leave it out"


def _of_labels(task: TaskConfig) -> Iterator[tuple[str, str]]:
    reader = task.reader.settings
    named = None
    if reader.get("label_map") is not None and reader.get("n_classes") is not None:
        with suppress(PalmError):  # the reader will report it
            named = len(Labels(None, reader["label_map"]).names)
    if named is not None and named < reader["n_classes"]:
        yield (
            "label_map",
            f"names {named} labels, but n_classes of task {task.name!r} is {reader['n_classes']}; add the "
            "missing labels, or leave n_classes out",
        )


def _all_of(*settings: str) -> list[Consumer]:
    """List the components that these settings can select."""
    return [REGISTRIES[setting][name] for setting in settings for name in REGISTRIES[setting]]


HELP: dict[str, list[Consumer]] = {
    "global settings": [
        RunSettings,
        *_all_of("optimizer"),
        ParameterGroups,
        *_all_of("lr_scheduler", "mixing", "balance"),
    ],
    "task settings": [TaskParts, TaskSettings],
    "readers": _all_of("reader"),
    "paradigms": _all_of("paradigm"),
    "backbones": _all_of("backbone"),
}
"""Heading -> the classes whose parameters are the settings of a configuration."""

NO_SETTINGS: dict[Consumer, Collection[str]] = {
    TaskSettings: LISTED,
    **{LR_SCHEDULES[name]: HORIZON for name in LR_SCHEDULES},
}
"""Parameters of components that configurations cannot set; left out of help and documentation."""


def resolve(config: Config, for_train: bool = True) -> RunConfig:
    """Return the run that a configuration describes.

    Args:
        config: as read from files and command line.
        for_train: report missing settings that training needs.

    Raises:
        ConfigError: all problems in one report, including unused settings.
    """
    return _Resolver(config, for_train).run()


class _Resolver:
    """Collects the settings of every component.

    Attributes:
        origins: the places of the values that were given.
        has: task, or None for the whole run -> setting -> the components that it selects.
    """

    def __init__(self, config: Config, for_train: bool) -> None:
        self.config = config
        self.for_train = for_train
        self.origins: dict[Key, str] = {}
        self.has: dict[str | None, dict[str, list[str]]] = {}

    def run(self) -> RunConfig:
        """Return the run, or raise a report of all problems."""
        config = self.config
        encoder = config.value("backbone")
        if encoder is not None and str(encoder.value).lower() in BACKBONES:
            cls = BACKBONES[str(encoder.value)]
            config.rename_in_backbone(cls.aliases)
            self._check_computation(cls)
        settings = self._settings()
        backbone = self.component(BACKBONES, "backbone", settings.get("backbone"))
        mixing = self.component(REGISTRIES["mixing"], None, settings.get("mixing", "mix_ratio"))
        name = settings.get("balance")
        balance = None if name is None else self.component(REGISTRIES["balance"], None, name)
        optimizer = self.component(REGISTRIES["optimizer"], None, settings.get("optimizer", "adam"))
        groups = ComponentConfig("groups", self.arguments(ParameterGroups, None))
        rule = settings.get("lr_scheduler", "linear_warmup_decay")
        # The horizon of the schedule is known once the steps are counted.
        schedule = self.component(LR_SCHEDULES, None, rule, without=HORIZON)
        made = [self.task(name, number, settings) for number, name in enumerate(config.tasks)]
        tasks = self._kept_shared_rows([task for task in made if task is not None])
        self._check_names()
        if self.for_train:
            self._check_training(settings, tasks)
            self._check_evaluation(settings, tasks)
        config.finish(_owners(), self.has)
        return RunConfig(
            settings=RunSettings(**settings),
            backbone=backbone,
            optimizer=optimizer,
            groups=groups,
            schedule=schedule,
            mixing=mixing,
            balance=balance,
            tasks=tuple(tasks),
            origins=self.origins,
            base=config.base,
        )

    def arguments(
        self,
        consumer: Consumer,
        scope: str | None,
        provided: Collection[str] = (),
        from_backbone: bool = True,
    ) -> dict[str, Any]:
        """Return all settings of a class: those that are given, and the defaults of the others."""
        given, places = self.config.arguments(consumer, scope, provided, self.for_train, from_backbone)
        self.origins |= {(scope, name): place for name, place in places.items()}
        for name, value in given.items() if self.for_train and consumer is not TaskSettings else ():
            if (line := text_problem(value)) is not None:
                self.config.problem(f"{self.config.placed(name, scope)}{line}")
        defaults = {
            name: parameter.default
            for name, parameter in settings_of(consumer).items()
            if parameter.default is not REQUIRED and name not in provided
        }
        return {**defaults, **given}

    def component(
        self,
        registry: Registry[Any],
        scope: str | None,
        name: str | None,
        fixed: Mapping[str, Any] = MappingProxyType({}),
        without: Collection[str] = (),
    ) -> ComponentConfig:
        """Return the component of this name; `fixed` replaces settings, those in `without` are left out."""
        cls = self._known(registry, name, scope)
        if cls is None:
            return ComponentConfig(name or "")
        fixed = {setting: value for setting, value in fixed.items() if setting in settings_of(cls)}
        settings = {**self.arguments(cls, scope, {*fixed, *without}), **fixed}
        return ComponentConfig(registry.name_of(cls), settings)

    def _settings(self) -> dict[str, Any]:
        """Return the settings of the run."""
        config = self.config
        found = {"task_instance": config.tasks, **self.arguments(RunSettings, None, ["task_instance"])}
        if place := config.place("task_instance"):
            self.origins[None, "task_instance"] = place
        for name, wrong in setting_problems(found, config.tasks):
            config.problem(f"{config.placed(name)} {wrong}")
        return found

    def task(self, name: str, number: int, run: Mapping[str, Any]) -> TaskConfig | None:
        """Return a task; None if its components are unknown, which is reported."""
        parts = self.config.arguments(TaskParts, name, from_backbone=False)[0]
        reader = self.component(REGISTRIES["reader"], name, parts.get("reader"))
        counted = self._classes_of(reader, name)
        head = self.component(REGISTRIES["paradigm"], name, parts.get("paradigm"), counted)
        settings = self._task_settings(name, number, run)
        if settings is None or not reader.settings or not head.settings:
            return None
        reader_class = REGISTRIES["reader"][reader.name]
        defaults = {**getattr(REGISTRIES["paradigm"][head.name], "reader_settings", {}), **counted}
        chosen = {
            setting: value
            for setting, value in defaults.items()
            if setting in settings_of(reader_class) and (name, setting) not in self.origins
        }
        return TaskConfig(name, replace(reader, settings={**reader.settings, **chosen}), head, settings)

    def _task_settings(self, name: str, number: int, run: Mapping[str, Any]) -> TaskSettings | None:
        found = self.arguments(TaskSettings, name, LISTED, from_backbone=False)
        if FROM in (found.get("lora") or {}) and (given := self.config.value("lora", name)) is not None:
            found["lora"] = {**found["lora"], FROM: str(given.base / str(found["lora"][FROM]))}
        ratios = run.get("mix_ratio") or []
        tags = run.get("target_tag") or []
        if number < len(ratios):
            found["mix_ratio"] = ratios[number]
        if number < len(tags):
            found["is_target"] = tags[number] == 1
        try:
            return TaskSettings(**found)
        except ConfigError as error:
            for line in error.problems:
                place = self.config.place(line.setting, name) if isinstance(line, Problem) else None
                self.config.problem(located(place, line, f"task {name!r}: "))
            return None

    def _classes_of(self, reader: ComponentConfig, task: str) -> dict[str, int]:
        """Return numbers of classes that are not set, counted from the labels that the reader is given."""
        counted = {}
        if columns := reader.settings.get("label_columns"):
            counted["n_classes"] = len(columns)
        for number, names in (("n_classes", "label_map"), ("n_span_classes", "span_label_map")):
            if (task, number) in self.origins or self.config.place(names, task) is None:
                continue
            counted[number] = 2  # a stand-in for wrong labels, so that it is not reported as missing too
            try:
                if reader.settings.get(names) is not None:
                    counted[number] = max(Labels(None, reader.settings[names]).names) + 1
            except PalmError as error:
                self.config.problem(f"task {task!r}: {error}")
        return counted

    def _kept_shared_rows(self, tasks: Sequence[TaskConfig]) -> list[TaskConfig]:
        """Make tasks that share rows keep rows without a label of their own, unless configured otherwise."""
        pairs = [(task.name, other) for task in tasks if (other := task.settings.share_rows_with)]
        shared = {name for pair in pairs for name in pair}
        kept = []
        for task in tasks:
            own = task.reader.settings
            is_classified = own.get("label_type") in (None, "class") and "missing_labels" in own
            if task.name in shared and is_classified and (task.name, "missing_labels") not in self.origins:
                # Such a row trains the other tasks, and leaving it out would shift their rows.
                reader = replace(task.reader, settings={**own, "missing_labels": True})
                task = replace(task, reader=reader)
            kept.append(task)
        return kept

    def _known(self, registry: Registry[Any], name: str | None, scope: str | None) -> Any:
        """Return the class of this name; None, with a problem in the report, if it is unknown."""
        # A missing name is reported already, and 'auto' is not resolved in prediction: in both cases, it is
        # unknown which other settings would be used.
        if name is None or (name == AUTO and registry is BACKBONES):
            self.config.excuse(scope)
            return None
        key = registry.setting
        owner = scope if scope in self.config.tasks else None
        try:
            found = registry[name]
        except PalmError as error:
            hint = "; or auto, with pretrain_path" if registry is BACKBONES else ""
            self.config.problem(f"{self.config.placed(key, owner)}: {error}{hint}")
            self.config.excuse(scope)
            return None
        for whose in {owner, None}:
            names = self.has.setdefault(whose, {}).setdefault(key, [])
            names += {registry.name_of(found)} - {*names}
        return found

    def _check_names(self) -> None:
        folders: dict[str, str] = {}
        for name in self.config.tasks:
            if (problem := name_problem(name)) is not None:
                self.config.problem(problem)
            elif (other := folders.setdefault(name.casefold(), name)) != name:
                self.config.problem(
                    f"tasks {other!r} and {name!r} have one folder where file names ignore case; rename one"
                )

    def _check_computation(self, encoder: type[Any]) -> None:
        """Check that the encoder's JSON does not ask for computations that palm's encoders do not support."""
        from palm.pretrained.directory import COMPUTED_AS, computation_problems

        if not (self.for_train and issubclass(encoder, Encoder)):
            return
        config = self.config
        found = {
            name: config.value(name, "backbone") for name in COMPUTED_AS if config.place(name, "backbone")
        }
        wrong = computation_problems({name: setting.value for name, setting in found.items() if setting})
        for name, line in wrong.items():
            config.problem(f"{config.place(name, 'backbone')}: {line}")

    def _check_training(self, settings: Mapping[str, Any], tasks: Sequence[TaskConfig]) -> None:
        config = self.config
        if not any(
            settings.get(name) is not None or config.place(name) for name in ("num_epochs", "max_steps")
        ):
            config.missing("num_epochs", "passes over the main task's training data; or set max_steps")
        resume = settings.get("resume")
        if settings.get("stages") is not None:
            resume = None  # it is reported with the stages
        bases = (config.base, config.base.cwd())
        if resume not in (None, AUTO) and not any((base / str(resume)).is_dir() for base in bases):
            config.problem(
                f"{config.placed('resume')} names {resume!r}, which is not a folder; give a checkpoint "
                "(SAVE_PATH/step_N), or auto for the newest of this run"
            )
        for task in tasks:
            if not (task.settings.batch_size or config.place("batch_size", task.name)):
                config.problem(f"task {task.name!r}: {NO_BATCH_SIZE}")
            train_file = config.value("train_file", task.name)
            if task.settings.train_file is None and not (train_file and train_file.value):
                config.problem(
                    f"task {task.name!r} has no train_file; name its training data in {task.name}.yaml"
                )
            for name in ("train_file", "dev_file"):
                path = getattr(task.settings, name)
                if path is not None and not is_data(path):
                    config.problem(f"{config.placed(name, task.name)}: {missing_reason(path)}: {path}")

    def _check_evaluation(self, settings: Mapping[str, Any], tasks: Sequence[TaskConfig]) -> None:
        """Check the requirements of early stopping."""
        config = self.config
        evaluated = [task.name for task in tasks if task.settings.is_evaluated]
        if (settings.get("early_stopping_patience") or -1) > 0:
            place = config.placed("early_stopping_patience")
            if not evaluated:
                config.problem(f"{place} needs a task with a dev_file")
            elif not settings.get("eval_every_epoch") and (settings.get("eval_every_n_steps") or -1) <= 0:
                config.problem(
                    f"{place} needs evaluations before the end of the run; "
                    "set eval_every_n_steps, or eval_every_epoch: True"
                )


def _owners() -> dict[str, dict[str, list[str]]]:
    """Return setting -> the registered components that accept it, by the setting that selects them."""
    found: dict[str, dict[str, list[str]]] = {}
    for registry in REGISTRIES.values():
        for name in registry:
            for setting in settings_of(registry[name]):
                found.setdefault(setting, {}).setdefault(registry.setting, []).append(name)
    return found


def edited(run: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Return the run with other settings, resolved and checked again.

    Args:
        run: the run.
        changes: settings of the whole run; None for the default. They also replace those of tasks.

    Raises:
        ConfigError: the problems of the edited run.
    """
    # Values that are not edited keep their places.
    origins = {key: place for key, place in run.origins.items() if key[1] not in changes}
    return resolve(read_config(edited_document(run, changes), argv=[], origins=origins))


def edited_document(run: RunConfig, changes: Mapping[str, Any]) -> Document:
    """Return `run.to_dict()` with changes, see `edited`."""
    document = run.to_dict()
    everything = document["global"]
    parts = {"optimizer": run.optimizer, "lr_scheduler": run.schedule, "mixing": run.mixing}
    parts["balance"] = run.balance or ComponentConfig("")
    for setting, part in parts.items():
        if (new := changes.get(setting)) is not None and new in REGISTRIES[setting]:
            # Settings of the component that is replaced.
            for name in part.settings.keys() - settings_of(REGISTRIES[setting][new]).keys():
                everything.pop(name, None)
    for name, value in changes.items():
        for task, own in document["tasks"].items():
            everything.pop(f"{task}.{name}", None)
            own.pop(name, None)
        everything.pop(name, None)
        if value is not None:
            everything[name] = plain(value)
    return document
