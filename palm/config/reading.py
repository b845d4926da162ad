"""Read files and the command line into layers of values with their places."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palm.config.config import AUTO, Config, Layer
from palm.config.conversion import FilePath, Mismatch, ModelPath, convert_value, describe_mismatch
from palm.config.files import Flag, Lines, Plain, Setting, display_path, read_json, read_yaml, shown
from palm.core.cache import explain_limits
from palm.core.component import did_you_mean, raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.process import is_program


class HelpRequested(Exception):  # noqa: N818 - not an error; the caller prints the help and exits
    """The arguments contain `--help` or `-h`."""


def program_arguments() -> list[str]:
    """Return the arguments of the running script; none in a notebook, an interactive session or a test."""
    return sys.argv[1:] if is_program() else []


def read_arguments(words: Sequence[str], problems: list[str]) -> dict[str, Setting]:
    """Return the settings among the arguments, by name; the last one of a name counts.

    Args:
        words: the arguments, without the program's name.
        problems: receives the arguments that are not options.

    Raises:
        HelpRequested: on `--help` or `-h`.
    """
    found: dict[str, Setting] = {}
    for name, value in _options(words):
        if value in ("--help", "-h") and name is None:
            raise HelpRequested
        if name is None:
            problems.append(f"command line: unexpected argument {value!r}; write --name value")
        else:
            found[name] = Setting(value, f"--{name}", Path.cwd())
    return found


def split_arguments(
    words: Sequence[str], own: Collection[str], flags: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Split words into a command's options and positional arguments, and all others, which are settings.

    A value stays with its option, so `--batch_size 8 config.yaml` names one file.

    Args:
        words: all words after the command.
        own: names of the command's options.
        flags: those of them without a value, so that the next word is not taken for it.
    """
    commands: list[str] = []
    settings: list[str] = []
    for name, value in _options(words, flags):
        if name is None:
            commands.append(value)
            continue
        option = f"--{name}" if isinstance(value, Flag) else f"--{name}={value}"
        (commands if name in own else settings).append(option)
    return commands, settings


def _options(words: Sequence[str], flags: Collection[str] = ()) -> Iterator[tuple[str | None, Any]]:
    """Yield (name, value) for each option (`--name=value` or `--name value`), and (None, word) for others."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--help" or not word.strip("-="):
            yield None, word
            continue
        name, equals, value = word[2:].partition("=")
        task, dot, setting = name.rpartition(".")
        name = task + dot + setting.replace("-", "_")
        if equals:
            yield name, Plain(value)
        # A value may begin with a single dash, such as -1.
        elif name not in flags and rest and not rest[0].startswith("--"):
            yield name, Plain(rest.pop(0))
        else:
            yield name, Flag()


PUBLISHED = {"epoch": "num_epochs", "seed": "random_seed"}
"""Global settings under other names of PaddlePALM's documents and programs."""

Settings = dict[str, Setting]
Key = tuple[str | None, str]
Directory = Callable[[Path | str], Mapping[str, Any]]


@explain_limits()
def read_config(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    argv: Sequence[str] | None = None,
    needs_tasks: bool = True,
    directory: Directory | None = None,
    resolves_auto: bool = True,
    origins: Mapping[Key, str] | None = None,
) -> Config:
    """Read the configuration of a run.

    Args:
        config: the global YAML file, or its content as a dict. Its key `tasks` may contain the settings of
            tasks by name, instead of their files, and `backbone`, if it is a mapping, those of the backbone's
            JSON, as in the result of `RunConfig.to_dict`.
        task_dir: the folder of the task files `<name>.yaml`; relative to the folder of the global file if it
            exists there, otherwise to the working directory.
        argv: arguments that override the files; None for the program's own, except in a notebook, an
            interactive session or under pytest.
        needs_tasks: False if a configuration without tasks is allowed.
        directory: reads the settings in a directory of pretrained weights, including the name of the encoder
            as `backbone`; called for `pretrain_path` if `backbone` is 'auto', and for the option
            `--pretrain`. Its settings are the weakest. For a model on the Hugging Face Hub it also returns
            the exact name, as `pretrain_path`. None leaves 'auto' and `--pretrain` unresolved.
        resolves_auto: False leaves 'auto' unresolved, unless there is `--pretrain`.
        origins: the places of the values of a dict: task, `backbone` or None, and name -> place.

    Raises:
        ConfigError: a file is missing or unreadable, or the tasks are not clear.
        HelpRequested: the arguments ask for help.
    """
    problems: list[str] = []
    options = read_arguments(program_arguments() if argv is None else argv, problems)
    # Called for `--pretrain` and for `backbone: auto`, each of which would look up a model on the Hub.
    cached = None if directory is None else functools.cache(directory)
    sources = _Sources(options, problems, needs_tasks, cached, resolves_auto, origins)
    sources.expand_pretrain()
    sources.open(config)
    return sources.merged(sources.folder(Path(task_dir)))


@dataclass
class _Sources:
    """The global file, task files and the backbone's JSON; reports all that cannot be read together.

    Args:
        options: the settings of the command line.
        problems: the report.
        needs_tasks: see `read_config`.
        directory: see `read_config`.
        resolves_auto: see `read_config`.
        origins: see `read_config`.
    """

    options: Settings
    problems: list[str]
    needs_tasks: bool
    directory: Directory | None
    resolves_auto: bool
    origins: Mapping[Key, str] | None = None
    failed: bool = False
    title: str = "config"
    base: Path = field(default_factory=Path.cwd)
    everything: Settings = field(default_factory=dict)
    inline: dict[str, Settings] = field(default_factory=dict)
    backbone: Settings | None = None

    def expand_pretrain(self) -> None:
        """Replace `--pretrain DIR` (or owner/name) by the settings of a run that starts only from it."""
        if self.directory is None or (setting := self.options.pop("pretrain", None)) is None:
            return
        if found := self._read_directory(setting, "pretrain"):
            values = {"backbone": AUTO, "pretrain_path": setting.value, "backbone_config_path": Plain("none")}
            values |= {name: found[name] for name in ("vocab_path", "do_lower_case")}
            for name, value in values.items():
                self.options[name] = replace(setting, value=value, origin=f"{setting.origin}: {name}")
            self.resolves_auto = True

    def open(self, config: str | Path | Mapping[str, Any]) -> None:
        """Read the global file or dict and its sections."""
        content = config
        if not isinstance(content, Mapping):
            path = Path(os.path.abspath(content))  # noqa: PTH100 - resolve() would follow links
            self.title = display_path(path)
            self.base = path.parent
            content = self._read(read_yaml, path)
            if self.failed:
                raise_any(self.problems)
        self.everything = self._settings(content, self.title)
        sections = {
            name: (content[name], _section_title(self.title, content, name))
            for name in ("global", "tasks", "backbone")
            if isinstance(content.get(name), Mapping)
        }
        # A mapping under these names is a section; a string, as in `backbone: bert`, is a setting.
        for name in sections:
            del self.everything[name]
        if "global" in sections:
            self.everything |= self._settings(*sections["global"])
        if "backbone" in sections:
            self.backbone = self._settings(*sections["backbone"], scope="backbone")
        section, title = sections.get("tasks", ({}, ""))
        for name, settings in section.items():
            if settings is not None and not isinstance(settings, Mapping):
                place = _place(title, section, name)
                self._fail(f"{place}: {name} should be a mapping, not {shown(settings)}")
                settings = None
            self.inline[str(name)] = self._settings(
                settings or {}, _section_title(title, section, name), name
            )

    def _settings(self, content: Mapping[str, Any], title: str, scope: str | None = None) -> Settings:
        def place(name: str) -> str:
            if self.origins is not None:
                return self.origins.get((scope, name), "")
            return _place(title, content, name)

        return {str(name): Setting(value, place(name), self.base) for name, value in content.items()}

    def _fail(self, *lines: str) -> None:
        self.problems += lines
        self.failed |= bool(lines)

    def folder(self, task_dir: Path) -> Path:
        """Return the folder of the task files."""
        beside = self.base / task_dir
        return beside if beside.is_dir() else Path.cwd() / task_dir

    def merged(self, folder: Path) -> Config:
        """Return the configuration of all layers."""
        tasks = {task: self._task(task, folder) for task in self._task_names()}
        found = self._directory_settings()
        backbone_title, backbone, gap = self._backbone()
        if self.failed:
            raise_any(self.problems)
        options = self._layers(self.options, list(tasks))
        everything = self._layers(self.everything, list(tasks))
        files = [Layer(settings, task) for task, (_, settings) in tasks.items()]
        titles = {None: self.title} | {task: title for task, (title, _) in tasks.items()}
        config = Config(
            [*options, *everything, *files, Layer(found | backbone, "backbone", is_optional=True)],
            titles | {"backbone": backbone_title},
            self.base,
            self.problems,
            gap,
        )
        config.value("task_instance")  # counts as used, although no component reads it
        config.value("backbone_config_path")
        return config

    def _run_setting(self, name: str) -> Setting | None:
        return self.options.get(name) or self.everything.get(name)

    def _task_names(self) -> list[str]:
        setting = self._run_setting("task_instance")
        if setting is None and self.inline:
            setting = self.everything["task_instance"] = Setting(list(self.inline), self.title, self.base)
        if setting is None and not self.needs_tasks:
            return []
        if setting is None or setting.value is None:
            self._fail(*self._missing_task_problems())
            return []
        try:
            names: list[str] = convert_value(setting, list[str])
        except Mismatch as error:
            self._fail(describe_mismatch("task_instance", setting, list[str], error))
            return []
        place = setting.place("task_instance")
        problems = [f"{place} names {name!r} twice" for name in sorted({*names}) if names.count(name) > 1]
        if not names:
            problems.append(f"{place} names no task")
        if "backbone" in names:
            problems.append(f"{place}: a task cannot be called 'backbone'")
        self._fail(*problems)
        return list(dict.fromkeys(names))

    def _missing_task_problems(self) -> list[str]:
        """Report that no task is named, and every setting with a name similar to `task_instance`."""
        similar = [
            f"{setting.origin}: nothing uses {name!r}{hint}"
            for name, setting in [*self.everything.items(), *self.options.items()]
            if name != "task_instance" and (hint := did_you_mean(name, ["task_instance"]))
        ]
        return [f"{self.title}: task_instance is missing (the names of the tasks)", *similar]

    def _task(self, task: str, folder: Path) -> tuple[str, Settings]:
        """Return the title and settings of one task, from the global file or its own file."""
        if task in self.inline:
            return next((s.origin for s in self.inline[task].values()), self.title), self.inline[task]
        path = folder / f"{task}.yaml"
        title = display_path(path)
        if not path.is_file():
            setting = self._run_setting("task_instance")
            assert setting is not None
            known = [*self.inline, *(path.stem for path in sorted(folder.glob("*.yaml")))]
            named = f"{setting.place('task_instance')} names {task!r}"
            self._fail(f"{named}, but there is no file {title}{did_you_mean(task, known)}")
            return title, {}
        return title, self._settings(self._read(read_yaml, path), title)

    def _backbone(self) -> tuple[str, Settings, str | None]:
        """Return the title and settings of the backbone, and the problem if its file is missing."""
        setting = self._run_setting("backbone_config_path")
        if self.backbone is not None or setting is None:
            return self.title, self.backbone or {}, None
        try:
            path = convert_value(setting, FilePath | None)
        except Mismatch as error:
            return self.title, {}, describe_mismatch("backbone_config_path", setting, Path, error)
        if path is None:
            return self.title, {}, None
        title = display_path(path)
        settings = self._settings(self._read(read_json, path), title)
        backbone = self._run_setting("backbone")
        if backbone is not None and backbone.value == "transformers":
            settings["encoder_config_path"] = setting  # this backbone reads the whole file itself
        return title, settings, None

    def _directory_settings(self) -> Settings:
        """Return the settings in the directory of pretrained weights, if `backbone` is 'auto'."""
        setting = self._run_setting("backbone")
        if not (self.directory and self.resolves_auto) or setting is None or setting.value != AUTO:
            return {}
        where = self._run_setting("pretrain_path")
        if where is None:
            self._fail(f"{setting.place('backbone')}: 'auto' needs pretrain_path, the encoder's directory")
            return {}
        found = self._read_directory(where, "pretrain_path")
        if not found:
            return {}
        self._replace("backbone", setting, found.pop("backbone"))
        path = convert_value(where, ModelPath)
        title = path if isinstance(path, str) else display_path(path)
        if "pretrain_path" in found:
            title = found.pop("pretrain_path")
            self._replace("pretrain_path", where, title)
        return {name: Setting(value, title, self.base) for name, value in found.items()}

    def _replace(self, name: str, setting: Setting, value: Any) -> None:
        """Replace the value of a setting of the whole run, and keep its place."""
        layer = self.options if name in self.options else self.everything
        layer[name] = replace(setting, value=value)

    def _read_directory(self, where: Setting, name: str) -> dict[str, Any]:
        """Return the settings in the directory that a setting names; report failures and return none."""
        assert self.directory is not None
        try:
            return dict(self.directory(convert_value(where, ModelPath)))
        except Mismatch as error:
            self._fail(describe_mismatch(name, where, ModelPath, error))
        except PalmError as error:
            self._fail(*(f"{where.place(name)}: {line}" for line in str(error).splitlines()))
        return {}

    def _read(self, read: Callable[[Path, list[str]], Lines], path: Path) -> Lines:
        """Return the content of a file; report failures and return nothing."""
        try:
            return read(path, self.problems)
        except ConfigError as error:
            self._fail(*error.problems)
            return Lines()

    def _layers(self, settings: Settings, tasks: Collection[str]) -> list[Layer]:
        """Return a layer for each task (for settings such as `mrqa.max_seq_len`), and one for all."""
        # Layers of tasks come first, so they are stronger.
        scopes: dict[str | None, Settings] = {task: {} for task in tasks}
        scopes[None] = {}
        for name, setting in settings.items():
            task, dot, own = name.rpartition(".")
            if dot and task not in tasks:
                unknown = f"there is no task {task!r}{did_you_mean(task, tasks)}"
                self.problems.append(f"{setting.place(name)}: {unknown}")
            else:
                scopes[task or None][own] = setting
        for other, own_name in PUBLISHED.items():
            if other in scopes[None] and own_name not in scopes[None]:
                scopes[None][own_name] = scopes[None].pop(other)
        return [Layer(own, scope) for scope, own in scopes.items()]


def _place(title: str, content: Mapping[str, Any], name: str) -> str:
    return f"{title}:{content.lines[name]}" if isinstance(content, Lines) else title


def _section_title(title: str, content: Mapping[str, Any], name: str) -> str:
    """Return the title of a section: the file itself, or `config['tasks']`."""
    return title if isinstance(content, Lines) else f"{title}[{name!r}]"
