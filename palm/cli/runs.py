"""Commands that plan or train runs of a configuration: check, train, compare, sweep."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from palm.cli import command as cli
from palm.core.errors import ExitCode, PalmError


@cli.command(
    "check",
    "check a run before it starts",
    [
        *cli.CONFIG,
        cli.output("the findings, as text, or for programs as .json"),
        cli.flag("--strict", "exit with code 1 for warnings, too"),
        cli.flag("--no_measure", "do not measure time and memory"),
    ],
    takes_settings=True,
)
def check_run(options: argparse.Namespace) -> None:
    """Check a run before it starts: its data, its wiring, its steps, time and memory, and its folder. Nothing
    is trained, and nothing is written to save_path. The exit code is 0 if no problem is found, 1 for an error
    (with --strict, also for a warning), and 2 if the command line is wrong.
    """
    from palm.check import check
    from palm.core.io import write_json, write_text

    if options.output is not None and options.output.suffix == ".html":
        raise PalmError(f"--output is a text file now; give {str(options.output.with_suffix('.txt'))!r}")
    findings = check(
        options.config,
        options.task_dir,
        options.settings,
        measure=not options.no_measure,
    )
    cli.write_line(findings)
    if options.output is not None and options.output.suffix == ".json":
        write_json(options.output, findings.as_json())
    elif options.output is not None:
        write_text(options.output, f"{findings}\n")
    if not findings.is_fine(options.strict):
        raise SystemExit(ExitCode.FOUND)


GROUPS = {
    "tasks": "task_instance target_tag mix_ratio mixing tasks_per_step balance",
    "model": "backbone pretrain_path vocab_path max_seq_len lora freeze",
    "training": "effort num_epochs max_steps batch_size learning_rate optimizer lr_scheduler weight_decay",
    "evaluation": "eval_every_n_steps eval_every_epoch metrics early_stopping_patience",
    "folder": "save_path resume overwrite save_every_n_steps keep_last_n loggers progress",
    "machine": "device precision num_devices",
}
"""Settings that most people change, by what they are about."""


def _settings_help(is_whole: bool) -> str:
    if is_whole:
        from palm.config.run import help_text
        from palm.controller.resolve import HELP, NO_SETTINGS

        return help_text(HELP, NO_SETTINGS)
    lines = [
        textwrap.fill(names, 79, initial_indent=f"  {title + ':':12}", subsequent_indent=" " * 14)
        for title, names in GROUPS.items()
    ]
    return "\n".join(["settings, as --NAME VALUE (--help_all explains all of them):", *lines])


OF_RAY = ("workers", "gpus_per_worker", "cpus_per_worker", "max_failures")
"""What `palm train --ray` can set, arguments of `palm.ray.train`."""


@cli.command(
    "train",
    "train the tasks of a configuration",
    [
        *cli.CONFIG,
        cli.flag("--report", "write report.html, which shows the run while it goes on"),
        cli.repeated(
            "--ray",
            "NAME=VALUE",
            "train on a Ray cluster: workers=4, or workers=2,4 for as many as there is room for; also "
            "gpus_per_worker, cpus_per_worker, max_failures; may be repeated",
        ),
        # For a run of palm compare or palm sweep, whose configuration is CONFIG.
        cli.option("--run_of", metavar="CONFIG", help=argparse.SUPPRESS),
    ],
    epilog=_settings_help,
    takes_settings=True,
)
def train(options: argparse.Namespace) -> None:
    """Train the tasks of a configuration."""
    if options.run_of is not None:
        from palm.experiments.grid import work

        work(Path(options.config).parent)
        return
    if options.ray:
        if options.report:
            raise PalmError("--report cannot be used with --ray; palm report shows the run's folder")
        _train_on_ray(options)
        return
    from palm.controller.controller import Controller

    callbacks = []
    if options.report:
        from palm.report.live import LiveReport

        callbacks.append(LiveReport())
    Controller(options.config, options.task_dir, argv=options.settings).train(callbacks)


def _train_on_ray(options: argparse.Namespace) -> None:
    from palm.experiments.sweep import grid_words
    from palm.ray import train

    given: dict[str, Any] = {}
    for name, values in grid_words(options.ray, "--ray").items():
        most = 2 if name == "workers" else 1
        if name not in OF_RAY or len(values) > most or not all(isinstance(v, int | float) for v in values):
            raise PalmError(f"--ray should be NAME=NUMBER with one of {', '.join(OF_RAY)}, not {name!r}")
        given[name] = values[0] if len(values) == 1 else tuple(values)
    train(options.config, options.task_dir, **given, argv=options.settings)


def _grid_arguments(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in ("workers", "output")}
    if options.ray:
        from palm.ray import Pool

        given["pool"] = Pool()
    return given


@cli.command(
    "compare",
    "find out whether tasks help each other",
    [
        *cli.CONFIG,
        cli.option("--seeds", type=int, default=5, metavar="N", help="runs of every way (default: 5)"),
        cli.repeated("--test", "TASK=FILE", "labelled data to compare a target on (default: its dev_file)"),
        cli.option(
            "--model",
            choices=["best", "last"],
            help="the model to score (default: the best if targets have a test file, else the last)",
        ),
        cli.repeated(
            "--also",
            "NAME:SETTING=VALUE",
            "a setting of another way to train all tasks, such as each_step:tasks_per_step=all",
        ),
        *cli.GRID,
    ],
    takes_settings=True,
)
def compare_tasks(options: argparse.Namespace) -> None:
    """Train every target alone, all tasks together, and all but each auxiliary, each with several seeds; show
    which tasks help, and how certain that is. Finished runs are kept: the same command continues after an
    interruption, and with more seeds trains only the missing runs.
    """
    from palm.experiments.compare import compare

    variants: dict[str, dict[str, str]] = {}
    for option_name, value in cli.pairs_of(options.also, "--also", "NAME:SETTING=VALUE"):
        name, _, setting = option_name.partition(":")
        if not (name and setting):
            raise PalmError(f"--also should be NAME:SETTING=VALUE, not {f'{option_name}={value}'!r}")
        variants.setdefault(name, {})[setting] = value
    chosen: dict[str, Any] = {
        "seeds": options.seeds,
        "test": dict(cli.pairs_of(options.test, "--test", "TASK=FILE")),
        "model": options.model,
        **_grid_arguments(options),
        "also": variants,
        "argv": options.settings,
    }
    cli.write_line(compare(options.config, options.task_dir, **chosen))


@cli.command(
    "sweep",
    "find the settings with the best dev scores",
    [
        *cli.CONFIG,
        cli.repeated(
            "--grid",
            "NAME=V1,V2",
            "values of a setting (TASK.NAME for that of one task), or 'NAME={low: 1e-5, high: 1e-3, log: "
            "true}'; may be repeated",
        ),
        cli.option("--trials", type=int, metavar="N", help="number of combinations, drawn at random"),
        *cli.GRID,
    ],
    takes_settings=True,
)
def sweep_settings(options: argparse.Namespace) -> None:
    """Train with different settings and write those with the best dev scores as a configuration. Without
    --trials every combination is tried; with it, that many are drawn at random. Finished runs are kept:
    the same command continues after an interruption.
    """
    from palm.experiments.sweep import grid_words, sweep

    best = sweep(
        options.config,
        grid_words(options.grid),
        options.task_dir,
        trials=options.trials,
        **_grid_arguments(options),
        argv=options.settings,
    )
    cli.write_line(best)
