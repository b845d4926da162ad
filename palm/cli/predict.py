"""`palm predict`: with the tasks of a configuration, or with one saved model."""

from __future__ import annotations

import argparse
from pathlib import Path

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "palm predict CONFIG [--task NAME ...] [--inference_model_dir DIR] [--resume] [--SETTING VALUE ...]\n"
        "       palm predict --model DIR --input FILE --output DIR [--resume]\n"
        "           [--engine onnx] [--precision NAME] [--trust MODULE ...]"
    )
    parser.description = (
        "Predict the pred_file of tasks of a configuration (all of them where none is named), "
        "or a file with a saved model, without any configuration."
    )
    add_config(parser, required=False)
    parser.add_argument("--task", action="append", default=[], help="a task to predict; may be repeated")
    parser.add_argument("--inference_model_dir", help="the saved model, for one task")
    parser.add_argument("--model", type=Path, help="the saved model")
    parser.add_argument("--input", type=Path, help="the data file to predict")
    parser.add_argument("--output", type=Path, help="the folder for the predictions")
    parser.add_argument(
        "--resume", action="store_true", help="go on where the same prediction was stopped, if it was"
    )
    add_engine(parser)
    add_trust(parser)


def run(options: argparse.Namespace, settings: Settings) -> None:
    if options.config is None:
        refuse_incomplete(options, settings, "palm predict", "model", "input", "output")
        from palm.core.numerics.device import device_of
        from palm.distributed import join
        from palm.engine.inference.loading import load_model

        device = device_of(use_gpu=options.engine == "torch")
        join(device)
        precision = options.precision or "auto"
        model = load_model(options.model, engine=options.engine, precision=precision, trust=options.trust)
        model.to(device)
        model.predict_file(options.input, options.output, resume=options.resume)
        return
    from palm.controller import Controller

    refuse_trust(options)
    settings = settings_with_precision(options, settings)
    find_components(options.config)
    controller = Controller(options.config, options.task_dir, for_train=False, argv=settings)
    for task in options.task or controller.config.tasks:
        controller.pred(task, options.inference_model_dir, resume=options.resume)


COMMAND = Command("predict", "predict with trained tasks", add_arguments, run, takes_settings=True)
