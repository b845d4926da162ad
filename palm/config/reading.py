"""From files, dicts and the command line to the layers of one configuration."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palm.config.command_line import program_arguments, read_arguments
from palm.config.config import AUTO, Config
from palm.config.conversion import FilePath, Mismatch, ModelPath, complaint, convert_value
from palm.config.files import Lines, displayed, read_json, read_yaml
from palm.config.layers import SettingsLayer, Source
from palm.config.problems import Problems
from palm.config.values import Plain, Setting, shown
from palm.core.errors import ConfigError, PalmError
from palm.core.registry import did_you_mean


def read_config(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    argv: Sequence[str] | None = None,
    ignore: Collection[str] = (),
    needs_tasks: bool = True,
    directory: Directory | None = None,
    resolves_auto: bool = True,
) -> Config:
    """The configuration of a run.

    Args:
        config: the global YAML file, or its content as a dict. Its key `tasks` may hold the
            settings of tasks by name, in place of their files, and `backbone`, if it is a
            mapping, those of the backbone's JSON; what `Config.resolved` gives is such a dict.
        task_dir: where the task files `<name>.yaml` lie; it counts from the folder of the
            global file if it exists there, else from the working directory.
        argv: arguments that overrule the files; None takes the program's own, except in a
            notebook, an interactive session or under pytest.
        ignore: options of the command line that belong to the calling script.
        needs_tasks: False where it is no mistake to name none.
        directory: what a directory of pretrained weights says, as settings, the encoder's name in
            `backbone` among them; asked about `pretrain_path` where `backbone` is 'auto', and about the
            option `--pretrain`. Its settings are the weakest. Of a model at Hugging Face it gives the exact
            name as `pretrain_path`. None leaves both as they are.
        resolves_auto: False leaves 'auto' as it is, unless there is `--pretrain`.

    Raises:
        ConfigError: a file is missing or unreadable, or it is not clear which tasks there are.
        HelpRequested: the arguments ask for help.
    """
    problems = Problems()
    words = program_arguments() if argv is None else argv
    asked = None if directory is None else functools.cache(directory)
    sources = _Sources(read_arguments(words, ignore, problems), problems, needs_tasks, asked, resolves_auto)
    sources.expand_pretrain()
    sources.open(config)
    return sources.joined(sources.folder(Path(task_dir)))


Settings = dict[str, Setting]
Directory = Callable[[Path | str], Mapping[str, Any]]


class _Sources:
    """The global file, task files and JSON on their way to layers; those that fail are reported together.

    Args:
        options: the settings of the command line.
        problems: the report.
        needs_tasks: whether it is a mistake to name no tasks.
        directory: see `read_config`.
        resolves_auto: see `read_config`.
    """

    def __init__(
        self,
        options: Settings,
        problems: Problems,
        needs_tasks: bool,
        directory: Directory | None,
        resolves_auto: bool,
    ) -> None:
        self.options = options
        self.directory, self.resolves_auto = directory, resolves_auto
        self.needs_tasks = needs_tasks
        self.problems = problems
        self.failed = False
        self.title, self.base = "config", Path.cwd()
        self.everything: Settings = {}
        self.inline: dict[str, Settings] = {}
        self.backbone: Settings | None = None
        self.cached_vocab: str | None = None

    def expand_pretrain(self) -> None:
        """`--pretrain DIR` (or owner/name) stands for the settings of a run that starts from there alone."""
        setting = self.options.get("pretrain")
        if setting is None or self.directory is None:
            return
        del self.options["pretrain"]
        if found := self._said_by_directory(setting, "pretrain"):
            values = {"backbone": AUTO, "pretrain_path": setting.value, "backbone_config_path": Plain("none")}
            values |= {name: found[name] for name in ("vocab_path", "do_lower_case")}
            self.options |= {
                name: Setting(value, f"{setting.origin}: {name}", setting.base)
                for name, value in values.items()
            }
            self.resolves_auto = True

    def open(self, config: str | Path | Mapping[str, Any]) -> None:
        """Read the global file or dict, with the sections in it."""
        content = config
        if not isinstance(content, Mapping):
            path = Path(os.path.abspath(content))  # noqa: PTH100 - resolve() would follow links
            self.title, self.base = displayed(path), path.parent
            content = self._read(read_yaml, path)
            if self.failed:
                self.problems.raise_if_any()
        self.everything = self._settings(content, self.title)
        sections = {
            name: (content[name], _inside(self.title, content, name))
            for name in ("global", "tasks", "backbone")
            if isinstance(content.get(name), Mapping)
        }
        for name in sections:
            del self.everything[name]
        if "global" in sections:
            self.everything |= self._settings(*sections["global"])
        if "backbone" in sections:
            self.backbone = self._settings(*sections["backbone"])
        section, title = sections.get("tasks", ({}, ""))
        for task, settings in ((str(name), settings) for name, settings in section.items()):
            is_mapping = settings is None or isinstance(settings, Mapping)
            inside = _inside(title, section, task)
            self.inline[task] = self._settings(settings or {}, inside) if is_mapping else {}
            if not is_mapping:
                place = _place(title, section, task)
                self._fail(f"{place}: {task} should be a mapping, not {shown(settings)}")

    def _settings(self, content: Mapping[str, Any], title: str) -> Settings:
        return {
            str(name): Setting(value, _place(title, content, name), self.base)
            for name, value in content.items()
        }

    def _fail(self, *lines: str) -> None:
        self.problems.add(*lines)
        self.failed = True

    def folder(self, task_dir: Path) -> Path:
        """The folder of the task files."""
        beside = self.base / task_dir
        return beside if beside.is_dir() else Path.cwd() / task_dir

    def joined(self, folder: Path) -> Config:
        """The configuration of all layers."""
        tasks = {task: self._task(task, folder) for task in self._task_names()}
        found = self._directory_settings()
        backbone_title, backbone, gap = self._backbone()
        if self.failed:
            self.problems.raise_if_any()
        config = Config(
            command_line=self._source(self.options, tasks),
            everything=self._source(self.everything, tasks),
            tasks={task: SettingsLayer(settings) for task, (_, settings) in tasks.items()},
            backbone=SettingsLayer(found | backbone),
            titles={None: self.title, "backbone": backbone_title}
            | {task: title for task, (title, _) in tasks.items()},
            base=self.base,
            backbone_gap=gap,
            problems=self.problems,
            cached_vocab=self.cached_vocab,
        )
        config.value("task_instance")
        config.value("backbone_config_path")
        return config

    def _own(self, name: str) -> Setting | None:
        return self.options.get(name) or self.everything.get(name)

    def _task_names(self) -> list[str]:
        setting = self._own("task_instance")
        if setting is None and self.inline:
            setting = self.everything["task_instance"] = Setting(list(self.inline), self.title, self.base)
        if setting is None and not self.needs_tasks:
            return []
        if setting is None or setting.value is None:
            similar = [
                f"{setting.origin}: nothing uses {name!r}{hint}"
                for name, setting in [*self.everything.items(), *self.options.items()]
                if name != "task_instance" and (hint := did_you_mean(name, ["task_instance"]))
            ]
            self._fail(f"{self.title}: task_instance is missing (the names of the tasks)", *similar)
            return []
        try:
            names: list[str] = convert_value(setting, list[str])
        except Mismatch as error:
            self._fail(complaint("task_instance", setting, list[str], error))
            return []
        place = setting.place("task_instance")
        if not names:
            self._fail(f"{place} names no task")
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            self._fail(*(f"{place} names {name!r} twice" for name in twice))
        if "backbone" in names:
            self._fail(f"{place}: a task cannot be called 'backbone'")
        return list(dict.fromkeys(names))

    def _task(self, task: str, folder: Path) -> tuple[str, Settings]:
        """The title and settings of one task, from the global file or its own."""
        if task in self.inline:
            return next((s.origin for s in self.inline[task].values()), self.title), self.inline[task]
        path = folder / f"{task}.yaml"
        title = displayed(path)
        if not path.is_file():
            setting = self._own("task_instance")
            assert setting is not None
            known = [*self.inline, *(path.stem for path in sorted(folder.glob("*.yaml")))]
            named = f"{setting.place('task_instance')} names {task!r}"
            self._fail(f"{named}, but there is no file {title}{did_you_mean(task, known)}")
            return title, {}
        return title, self._settings(self._read(read_yaml, path), title)

    def _backbone(self) -> tuple[str, Settings, str | None]:
        """The title and settings of the backbone, and what to say if its file is not there."""
        setting = self._own("backbone_config_path")
        if self.backbone is not None or setting is None:
            return self.title, self.backbone or {}, None
        try:
            path = convert_value(setting, FilePath | None)
        except Mismatch as error:
            return self.title, {}, complaint("backbone_config_path", setting, FilePath, error)
        if path is None:
            return self.title, {}, None
        title = displayed(path)
        return title, self._settings(self._read(read_json, path), title), None

    def _directory_settings(self) -> Settings:
        """What the directory of pretrained weights says, where `backbone` is 'auto'."""
        setting = self._own("backbone")
        if not (self.directory and self.resolves_auto) or setting is None or setting.value != AUTO:
            return {}
        where = self._own("pretrain_path")
        if where is None:
            self._fail(f"{setting.place('backbone')}: 'auto' needs pretrain_path, the directory that tells")
            return {}
        found = self._said_by_directory(where, "pretrain_path")
        if not found:
            return {}
        self._replace("backbone", setting, found.pop("backbone"))
        path = convert_value(where, ModelPath)
        title = path if isinstance(path, str) else displayed(path)
        if "pretrain_path" in found:
            title = found.pop("pretrain_path")
            self._replace("pretrain_path", where, title)
            self.cached_vocab = found["vocab_path"]
        return {name: Setting(value, title, self.base) for name, value in found.items()}

    def _replace(self, name: str, setting: Setting, value: Any) -> None:
        """Give a setting of the whole run another value, where it stands."""
        layer = self.options if name in self.options else self.everything
        layer[name] = replace(setting, value=value)

    def _said_by_directory(self, where: Setting, name: str) -> dict[str, Any]:
        """What the directory says that a setting names; nothing if that fails, which goes into the report."""
        assert self.directory is not None
        try:
            return dict(self.directory(convert_value(where, ModelPath)))
        except Mismatch as error:
            self._fail(complaint(name, where, ModelPath, error))
        except PalmError as error:
            self._fail(*(f"{where.place(name)}: {line}" for line in str(error).splitlines()))
        return {}

    def _read(self, read: Callable[[Path, Problems], Lines], path: Path) -> Lines:
        """The content of a file; nothing if it cannot be read, which goes into the report."""
        try:
            return read(path, self.problems)
        except ConfigError as error:
            self._fail(*error.problems)
            return Lines()

    def _source(self, settings: Settings, tasks: Collection[str]) -> Source:
        """The settings for everybody, and those that name a task: `mrqa.max_seq_len`."""
        everybody: Settings = {}
        single: dict[str, Settings] = {}
        for name, setting in settings.items():
            task, dot, own = name.rpartition(".")
            if not dot:
                everybody[name] = setting
            elif task in tasks:
                single.setdefault(task, {})[own] = setting
            else:
                self.problems.add(
                    f"{setting.place(name)}: there is no task {task!r}{did_you_mean(task, tasks)}"
                )
        return Source(SettingsLayer(everybody), {task: SettingsLayer(own) for task, own in single.items()})


def _place(title: str, content: Mapping[str, Any], name: str) -> str:
    return f"{title}:{content.lines[name]}" if isinstance(content, Lines) else title


def _inside(title: str, content: Mapping[str, Any], name: str) -> str:
    """The title of a section: the file itself, or `config['tasks']`."""
    return title if isinstance(content, Lines) else f"{title}[{name!r}]"
