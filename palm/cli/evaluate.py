"""`palm evaluate`: how good the tasks of a configuration are, or one saved model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from palm.cli.command import (
    Command,
    Settings,
    add_config,
    add_engine,
    add_trust,
    find_components,
    refuse_incomplete,
    refuse_trust,
    settings_with_precision,
)
from palm.core.errors import PalmError

if TYPE_CHECKING:
    from palm.engine.run.evaluation import JsonScores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "palm evaluate CONFIG [--task NAME ...] [--inference_model_dir DIR] [--SETTING VALUE ...]\n"
        "       palm evaluate --model DIR --input FILE [--metric NAME ...]\n"
        "           [--engine onnx] [--precision NAME] [--trust MODULE ...]"
    )
    parser.description = (
        "Score tasks of a configuration on their dev_file (all that have one where none is named), or a "
        "saved model on a file with labels. The last line is JSON: the numbers, with a configuration by task."
    )
    add_config(parser, required=False)
    parser.add_argument("--task", action="append", default=[], help="a task to evaluate; may be repeated")
    parser.add_argument("--inference_model_dir", help="the saved model, for one task")
    parser.add_argument("--model", type=Path, help="the saved model")
    parser.add_argument("--input", type=Path, help="the data file, with labels")
    parser.add_argument("--metric", action="append", help="a metric instead of the usual; may be repeated")
    add_engine(parser)
    add_trust(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:
    from palm.engine.run.evaluation import json_ready

    scores: JsonScores | dict[str, JsonScores]
    if options.config is None:
        refuse_incomplete(options, settings, "palm evaluate", "model", "input")
        from palm.engine.inference.loading import load_model

        precision = options.precision or "auto"
        model = load_model(options.model, engine=options.engine, precision=precision, trust=options.trust)
        scores = json_ready(model.evaluate(options.input, options.metric))
    else:
        from palm.controller import Controller

        refuse_trust(options)
        settings = settings_with_precision(options, settings)
        find_components(options.config)
        controller = Controller(options.config, options.task_dir, for_train=False, argv=settings)
        with_data = [task.name for task in controller.plan.tasks if task.task.get("dev_file") is not None]
        tasks = options.task or with_data
        if not tasks:
            raise PalmError(
                "no task has a dev_file; name the data in a task's file, or with --TASK.dev_file FILE"
            )
        scores = {task: json_ready(controller.evaluate(task, options.inference_model_dir)) for task in tasks}
    sys.stdout.write(json.dumps(scores, ensure_ascii=False) + "\n")


COMMAND = Command("evaluate", "score trained tasks on labelled data", add_arguments, run, takes_settings=True)
