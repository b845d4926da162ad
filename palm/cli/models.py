"""Commands for trained and pretrained models, from predict to inspect."""

from __future__ import annotations

import argparse
from argparse import SUPPRESS
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palm.cli import command as cli
from palm.core.errors import PalmError
from palm.core.logging import logger

if TYPE_CHECKING:
    from palm.controller.controller import Controller
    from palm.predict.inference import InferenceModel


def _names_model(options: argparse.Namespace, *needed: str) -> bool:
    """Return True if the options name a saved model, False if they name a configuration.

    Raises:
        PalmError: options of both are mixed, or required ones are missing.
    """
    if options.config is not None:
        own: dict[str, Any] = {"model": None, "input": None, "trust": [], "engine": "torch"}
        if given := [f"--{name}" for name, default in own.items() if getattr(options, name) != default]:
            raise PalmError(
                f"CONFIG, here {options.config}, cannot be used with {', '.join(given)}; a configuration "
                "names files and components itself, and --inference_model_dir names another model"
            )
        return False
    missing = [f"--{name}" for name in needed if getattr(options, name) is None]
    if missing or options.settings:
        what, came = ("unknown", options.settings) if options.settings else ("missing", missing)
        raise PalmError(f"expected CONFIG, or --{', --'.join(needed)}; {what}: {', '.join(came)}")
    return True


def _load_models(options: argparse.Namespace) -> dict[str, InferenceModel]:
    """Load the saved model onto the device of this process, which is one of several under `torchrun`.

    Returns:
        The models of the tasks named with --task, or of all, by name.
    """
    from palm.core.device import device_of
    from palm.core.group import join
    from palm.predict.loading import load_models

    join(device_of(options.engine == "torch", options.device or "auto"))
    models = load_models(options.model, **_loading(options)).tasks
    for task in options.task:
        if task not in models:
            raise PalmError(f"--task: {options.model} has the tasks {', '.join(models)}, not {task!r}")
    return {task: models[task] for task in options.task or models}


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `palm.load_model`."""
    auto = {name: getattr(options, name) or "auto" for name in ("device", "precision")}
    return {**auto, "engine": options.engine, "trust": options.trust}


def _open_controller(options: argparse.Namespace) -> Controller:
    from palm.controller.controller import Controller

    shared = {"--precision": options.precision, "--device": options.device}
    argv = [word for name, value in shared.items() if value is not None for word in (name, value)]
    return Controller(options.config, options.task_dir, for_train=False, argv=[*options.settings, *argv])


def _chosen(options: argparse.Namespace, controller: Controller, setting: str) -> list[str]:
    """Return the tasks named with --task, or else the targets that have this file."""
    from palm.controller.controller import with_data

    return list(options.task or with_data(controller.chosen, setting))


@cli.command(
    "predict",
    "predict with trained tasks",
    [
        *cli.OPTIONAL_CONFIG,
        cli.repeated("--task", "NAME", "a task to predict; may be repeated"),
        cli.option("--input", type=cli.path, help="the data file to predict"),
        cli.output("the predictions: a folder, or a .jsonl or .csv file"),
        cli.flag("--resume", "continue the same prediction where it was interrupted"),
        cli.option("--shard", metavar="K/N", help="predict part K of N; merge/N puts all parts together"),
        *cli.SAVED_MODEL,
    ],
    takes_settings=True,
)
def predict(options: argparse.Namespace) -> None:
    """Predict the pred_file of tasks of a configuration: of every target that has one, with the model of all
    targets, or of those named with --task, with their own best models. Or, without a configuration, predict a
    file with a saved model: --model DIR --input FILE --output DIR, or OUT/TASK for each of several tasks.
    """
    how: dict[str, Any] = {"resume": options.resume, "shard": options.shard}
    if _names_model(options, "model", "input", "output"):
        _predict_with_models(options, how)
        return
    controller = _open_controller(options)
    if not (options.task or options.inference_model_dir or options.output):
        controller.pred_all(**how)
        return
    tasks = _chosen(options, controller, "pred_file")
    if options.output is not None and len(tasks) > 1:
        raise PalmError(f"--output is for the rows of one task; choose it with --task: {', '.join(tasks)}")
    for task in tasks:
        controller.pred(task, options.inference_model_dir, output=options.output, **how)


def _predict_with_models(options: argparse.Namespace, how: dict[str, Any]) -> None:
    from palm.predict.inference import JointModel
    from palm.reader.predictions import is_table_name

    models = _load_models(options)
    if len(models) > 1 and is_table_name(options.output):
        JointModel(models).predict_table(options.input, options.output, **how)
    else:
        places = {task: options.output / task if len(models) > 1 else options.output for task in models}
        JointModel(models).predict_files({task: (options.input, p) for task, p in places.items()}, **how)
    saved = "predictions" if options.shard is None else f"shard {options.shard}"
    logger.info("%s: %s saved at %s", ", ".join(models), saved, options.output)


@cli.command(
    "evaluate",
    "score trained tasks on labelled data",
    [
        *cli.OPTIONAL_CONFIG,
        cli.repeated("--task", "NAME", "a task to evaluate; may be repeated"),
        cli.option("--input", type=cli.path, help="the data file, with labels"),
        cli.option("--metric", action="append", help="a metric to use instead of the usual; may be repeated"),
        *cli.SAVED_MODEL,
    ],
    takes_settings=True,
)
def evaluate(options: argparse.Namespace) -> None:
    """Score tasks of a configuration on their dev_file: every target that has one, with the model of all
    targets, or those named with --task, with their own best models. Or score a saved model on a file with
    labels (--model DIR --input FILE). The last line of the output is JSON: the scores, by task if there are
    several or a configuration.
    """
    from palm.core.group import is_main_process
    from palm.train.evaluation import json_ready

    if _names_model(options, "model", "input"):
        models = _load_models(options).items()
        found = {task: model.evaluate(options.input, options.metric) for task, model in models}
    else:
        controller = _open_controller(options)
        if options.task or options.inference_model_dir:
            tasks = _chosen(options, controller, "dev_file")
            found = {task: controller.evaluate(task, options.inference_model_dir) for task in tasks}
        else:
            found = controller.evaluate_all()
    scores: Any = {task: json_ready(each) for task, each in found.items()}
    if options.config is None and len(scores) == 1:
        (scores,) = scores.values()
    if is_main_process():
        cli.write_json(scores, indent=None)


@cli.command(
    "serve",
    "answer HTTP requests with trained models",
    [
        cli.option("folders", metavar="DIR", nargs="+", help="a run, or a saved model"),
        cli.option("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0 for all"),
        cli.option("--port", type=int, default=8000, help="the port to listen at (default: 8000)"),
        cli.option("--workers", type=int, default=1, metavar="N", help="processes, each with all models"),
        cli.flag("--watch", "replace a model when a new one takes its place on disk"),
        cli.option(
            "--queue",
            type=int,
            default=SUPPRESS,
            help="requests that may wait (default: 256); more get status 429",
        ),
        cli.option("--texts", type=int, default=SUPPRESS, help="texts of a request (default: 64)"),
        cli.option(
            "--characters", type=int, default=SUPPRESS, help="characters of a request (default: 100000)"
        ),
        cli.option(
            "--batch_tokens",
            type=int,
            default=SUPPRESS,
            help="tokens of a batch (default: 4096 on a GPU, 512 on a CPU)",
        ),
        cli.option("--seconds", type=float, default=SUPPRESS, help="time for an answer (default: 30)"),
        cli.flag("--log_texts", "write texts into the access log"),
        *cli.ENGINE,
    ],
)
def serve_models(options: argparse.Namespace) -> None:
    """Answer HTTP requests with the tasks of runs and saved models, with a page for people at /. If the
    environment variable PALM_API_KEY is set, requests need this key. On SIGTERM, accepted requests are
    answered before the process ends.
    """
    try:
        from palm.serve.app import serve
        from palm.serve.service import Settings
    except ImportError as error:
        raise PalmError(f"palm serve needs {error.name}: pip install 'palm-torch[serve]'") from None
    from palm.core.process import Stopped

    given = {name: value for name, value in vars(options).items() if name in Settings.__dataclass_fields__}
    settings = Settings(**given, options=_loading(options))
    with suppress(Stopped):  # SIGTERM is how a server ends
        serve(settings, options.host, options.port, options.workers)


@cli.command(
    "export",
    "write trained tasks for transformers or ONNX",
    [
        cli.option("source", metavar="MODEL", help="a run or a saved model"),
        cli.output("it: a new folder", required=True),
        cli.OVERWRITE,
        cli.option("--to", choices=["hf", "onnx"], required=True, help="hf for transformers, or onnx"),
        cli.TRUST,
    ],
)
def export(options: argparse.Namespace) -> None:
    """Write a saved model for Hugging Face's transformers or as an ONNX graph, which is first compared with
    PyTorch. Several tasks become one graph, or for transformers one directory per task.
    """
    from palm.export import to_hugging_face, to_onnx

    common = {"trust": options.trust, "overwrite": options.overwrite}
    if options.to == "onnx":
        to_onnx(options.source, options.output, **common)
    else:
        to_hugging_face(options.source, options.output, **common)


@cli.command(
    "convert",
    "write an encoder for transformers",
    [
        cli.option("source", metavar="DIR", help="a directory with weights, config and vocabulary"),
        cli.output("it: a new folder", required=True),
        cli.OVERWRITE,
    ],
)
def convert_encoder(options: argparse.Namespace) -> None:
    """Write the encoder and the vocabulary of a directory (of Hugging Face, PaddlePALM, PaddleNLP or palm)
    for Hugging Face's transformers. The values of the weights do not change.
    """
    from palm.export.hugging_face import convert

    convert(options.source, options.output, options.overwrite)


@cli.command(
    "download",
    "list pretrained models, or download them by name",
    [
        cli.option("-l", "--list", action="store_true", help="list the models"),
        cli.option("names", metavar="NAME", nargs="*", help="a model of the list, owner/name, or all"),
        cli.option("-d", "--download", metavar="NAME", action="append", default=[], help="the same"),
        cli.output("`pretrain/NAME`: a folder (default: the working directory)", default=Path()),
    ],
)
def download_models(options: argparse.Namespace) -> None:
    """Download pretrained models to OUT/pretrain/NAME. If the connection breaks, the finished part is kept:
    run the same command again to continue. The environment variable HF_ENDPOINT names another server.
    """
    from palm.compat.downloader import download, listed

    names = [*options.names, *options.download]
    if options.list or not names:
        for line in listed("pretrain"):
            cli.write_line(line)
    try:
        for name in names:
            download("pretrain", name, options.output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again to continue") from None


@cli.command(
    "inspect",
    "show what a directory contains",
    [cli.option("directory", metavar="DIR", help="the directory"), cli.JSON],
    uses_torch=False,
)
def inspect(options: argparse.Namespace) -> None:
    """Show what a directory contains: a saved model, a checkpoint, a run, an export, or pretrained weights of
    Hugging Face, PaddlePALM or PaddleNLP. If the format allows it, only the names and shapes of weights are
    read.
    """
    from palm.config import yaml_text
    from palm.report.inspection import inspect_directory

    facts = inspect_directory(options.directory)
    if options.json:
        cli.write_json(facts)
    else:
        cli.write_line(yaml_text(facts).rstrip())
