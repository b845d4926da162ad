"""Samples of every file that palm writes: what its commands leave on the disk, and all that reads it.

No list of files stands here: the commands run, their folders are searched, and an audit hook tells which of
the readings opens which file. A file that a command writes anew joins by itself.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_run
from samples import Sample

import palm.compat as palm
from palm.check import check
from palm.check.page import write_page
from palm.cli.starter.project import write_project
from palm.config import read_config
from palm.controller.controller import Controller
from palm.core.files.cache import Cache
from palm.core.files.fs import WRITTEN, check_replaceable, is_written
from palm.core.files.manifest import is_sealed, verify
from palm.core.files.records import read_record
from palm.experiments.comparison import compare as comparing
from palm.experiments.comparison.setup import setup_of
from palm.experiments.grid.folder import CONFIGURATION, JOB, Grid, Job
from palm.experiments.grid.source import Source
from palm.experiments.search import sweep as sweeping
from palm.export.hugging_face import to_hugging_face
from palm.export.onnx_model import to_onnx
from palm.export.sources import tasks_of_run
from palm.predict.inference import InferenceModel
from palm.predict.prediction_resume import PREDICTION_LOG, PredictionLog
from palm.reader.cache import DataCache, key_of
from palm.reader.predicted_tables import KIND, write_table
from palm.reader.predictions import SavedAnswers, SavedRecords
from palm.report import page as pages
from palm.report.analysis import analyses_of
from palm.report.difference import differences
from palm.report.inspection import inspect_directory
from palm.report.page import comparison_page, page
from palm.report.plot import terminal_plot
from palm.report.run import read_run
from palm.train.checkpoint import load_checkpoint, newest_checkpoint
from palm.train.history import read_lines
from palm.train.run_directory import RunDirectory
from palm.train.run_lock import HOLDER, _holder, only_run_in
from palm.train.staged_directory import StagedDirectory

TASKS = ("colour", "words")
TEXTS = ["a red door", "a blue lamp"]


@dataclass
class Written:
    """A folder that a command has left, and what palm does with it later.

    Args:
        command: what left it.
        folder: the folder.
        readings: name -> a reading of all of it, whose results must not change.
    """

    command: str
    folder: Path
    readings: Mapping[str, Callable[[], Any]]

    def samples(self) -> Iterator[Sample]:
        """Yield every file with each reading that opens it; of equal ones (`step_5`, `step_10`), the last."""
        whole = self.folder.with_name(f"{self.folder.name}.whole")
        shutil.copytree(self.folder, whole, symlinks=True)
        opened_by = {}
        for name, read in self.readings.items():
            with opened_files(self.folder) as opened:
                read()
            restore(self.folder, {each.relative_to(whole): each for each in walk(whole)})
            opened_by[name] = opened
        files = (file for file in sorted(self.folder.rglob("*")) if file.is_file() and file.stat().st_size)
        kinds = {kind_of(file.relative_to(self.folder)): file for file in files}
        clean = functools.partial(
            restore, self.folder, {each.relative_to(whole): each for each in walk(whole)}
        )
        for kind, file in kinds.items():
            opening = {name: self.readings[name] for name in self.readings if str(file) in opened_by[name]}
            for name, read in (opening or written_again(file)).items():
                sample = f"{self.command}: {kind}, {name}"
                yield Sample(sample, file, read, is_covered=has_checksum(file), clean=clean)


def written_again(file: Path) -> dict[str, Callable[[], Any]]:
    """The next command's look at a file that no reading opens: may it be replaced, or its folder be used."""
    sealed = [folder for folder in file.parents if is_sealed(folder)]
    if sealed:
        return {"verify": functools.partial(verify, sealed[0])}
    files = file.parent.iterdir() if file.name == WRITTEN else [file]
    # Some have a kind beside their name.
    ours = [(each, kind) for each in files for kind in ("", KIND) if is_written(each, kind)]
    assert ours, f"nothing reads {file}"
    return {"replace": lambda: [check_replaceable(*each) for each in ours]}


def kind_of(name: Path) -> str:
    """The name of a file without numbers and digests."""
    name_of_run = re.sub(r"(?<=runs/)[^/]+", "RUN", name.as_posix())
    return re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{32}", "KEY", name_of_run))


UNCHECKED = re.compile(r".*predictions\.json|null_odds\.json|report\.html|.*\.yaml")
"""What users read, and may change; palm takes it as it is."""


def has_checksum(file: Path) -> bool:
    """Whether palm keeps a checksum of all of a file: no other values may come out of it."""
    if UNCHECKED.fullmatch(file.name):
        return False
    if file.name in (PREDICTION_LOG, "rows.json") or any(map(is_sealed, file.parents)):
        return True
    record = file.with_name(WRITTEN)
    lines = map(json.loads, record.read_text(encoding="utf-8").splitlines()) if record.is_file() else ()
    grows = [line["grows"] for line in lines if line["name"] == file.name and "sha256" in line]
    return is_written(file) and not any(grows)


def restore(folder: Path, before: Mapping[Path, Path]) -> None:
    """Make a folder what it was: a reading may repair, move aside or write."""
    now = {each.relative_to(folder): each for each in walk(folder)}
    for name in now.keys() - before.keys():
        now[name].unlink()
    for name, file in before.items():
        copy = folder / name
        if name not in now or changed(copy, file):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)


def walk(top: Path) -> Iterator[Path]:
    """All files below a folder."""
    for place, _, names in os.walk(top):
        yield from (Path(place, name) for name in names)


def changed(copy: Path, file: Path) -> bool:
    """Whether size or time of a file differ from those of its original."""
    one, other = copy.stat(), file.stat()
    return (one.st_size, one.st_mtime_ns) != (other.st_size, other.st_mtime_ns)


_OPENED: list[set[str]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _OPENED and event in ("open", "sqlite3.connect"):
        with suppress(TypeError, ValueError):
            _OPENED[-1].add(str(Path(os.fsdecode(arguments[0])).absolute()))


@contextmanager
def opened_files(folder: Path) -> Iterator[set[str]]:
    """Within it, collect the names of files below a folder that are opened."""
    if not getattr(sys, "_palm_hears", False):
        sys.addaudithook(_hear)
        sys._palm_hears = True  # type: ignore[attr-defined]
    _OPENED.append(set())
    found: set[str] = set()
    try:
        yield found
    finally:
        found |= {name for name in _OPENED.pop() if name.startswith(str(folder))}


# ---- The commands ----


def written(folder: Path, with_grids: bool = True) -> list[Written]:
    """Run palm's commands below a folder; those of many processes may be left out."""
    data = folder / "data"
    tiny_run.write_files(data)
    tiny_run.write_many(data, 40)
    os.environ["PALM_DATA_CACHE"] = str(folder / "cache")
    found = [_run(folder, data), _staged(folder, data), *_of_model(folder, data), _cache(folder, data)]
    found += [*_of_program(folder, data), _project(folder), _graphs(folder), *_adapted(folder, data)]
    found.append(_sentences(folder, data))
    return found + ([_comparison(folder, data), _sweep(folder, data)] if with_grids else [])


def _run(folder: Path, data: Path) -> Written:
    out = folder / "run"
    cache = {"use_data_cache": True, "data_cache": str(folder / "cache")}
    settings = tiny_run.settings(data, out, **cache)
    rough = folder / "rough.tsv"
    rough.write_text(
        (data / "colour.tsv").read_text(encoding="utf-8") + "seven\ta red door\n", encoding="utf-8"
    )
    settings["tasks"]["colour"] |= {"train_file": str(rough), "on_bad_row": "skip"}  # for bad_rows.jsonl
    (folder / "run.yaml").write_text(json.dumps(settings), encoding="utf-8")
    Controller(folder / "run.yaml", argv=[]).train()
    shutil.copytree(out, folder / "other")
    palm.write_report(out)
    palm.plot(out)
    write_page(check(folder / "run.yaml", measure=False), out / "check.html")

    newest = newest_checkpoint(out)

    def tasks() -> Any:
        if newest_checkpoint(out) != newest:
            raise palm.PalmError("passed over, with a warning")
        return [task.head.state_dict() for task in tasks_of_run(newest or out)]

    start = functools.partial(_start, out, str(newest))
    return Written("train", out, {**_readings_of_run(out), "start": start, "tasks": tasks})


def _start(out: Path, newest: str) -> Any:
    run = RunDirectory(out, TASKS, TASKS[:1], resume="auto")
    start = run.check()
    if str(start.checkpoint) != newest:
        raise palm.PalmError("passed over, with a warning")
    return [str(start.checkpoint), run.results()]


def _readings_of_run(out: Path) -> dict[str, Callable[[], Any]]:
    def report() -> Any:
        run = read_run(out)
        return page(run, analyses_of(run, predict=False))

    models = {
        f"load {place.relative_to(out)}": functools.partial(_weights, place)
        for place in (*out.glob("*/*_model"), *out.glob("best/*"))
        if is_sealed(place)
    }
    return {
        **models,
        "report": report,
        "plot": lambda: terminal_plot(out),
        "diff": lambda: differences(str(out), str(out.with_name("other"))),
        "inspect": lambda: inspect_directory(out),
        "load": lambda: palm.load_model(out / "colour", precision="fp32").predict(TEXTS),
        "history": lambda: read_lines(out / "history.jsonl"),
    }


def _weights(model: Path) -> Any:
    return palm.load_model(model, precision="fp32").weights()


def _staged(folder: Path, data: Path) -> Written:
    out = folder / "staged"
    tiny_run.train(data, out, stages=tiny_run.STAGES[:2])
    record = json.loads((out / "stages.json").read_text(encoding="utf-8"))
    run = RunDirectory(out, TASKS, TASKS[:1], resume="auto")

    def resume() -> Any:
        staged = StagedDirectory(run, record["stages"])
        staged.open()
        return staged.write_history()

    def start_from() -> Any:
        return [task.head.state_dict() for task in tasks_of_run(out / "stages" / "1-joint" / "weights")]

    return Written("train in stages", out, {**_readings_of_run(out), "resume": resume, "start": start_from})


def _of_model(folder: Path, data: Path) -> Iterator[Written]:
    model = palm.load_model(folder / "run" / "colour" / "infer_model")
    out = folder / "predicted"
    model.predict_file(data / "many.tsv", out)
    yield Written("predict", out, {"records": lambda: list(SavedRecords(out / "predictions.json", 40, [0]))})
    table = folder / "table"
    records = list(model.predict_file(data / "many.tsv", folder / "records"))
    write_table(records, table / "predicted.tsv", model.reader, data / "many.tsv")
    yield Written("predict a table", table, {})
    yield stopped_prediction(folder / "stopped")
    answers = folder / "answers"
    answers.mkdir()
    records = ({"id": f"q{k}", "text": "red", "nbest": [], "null_odds": 0.5} for k in range(3))
    palm.reader.predictions.write_answers(records, answers)
    yield Written("answers", answers, {"answers": lambda: dict(SavedAnswers(answers / "predictions.json"))})
    for kind, exporter in (("hf", to_hugging_face), ("onnx", to_onnx)):
        target = folder / f"export_{kind}"
        exporter(folder / "run" / "colour" / "infer_model", target)
        readings = {"inspect": functools.partial(inspect_directory, target)}
        if kind == "hf":
            readings["load"] = functools.partial(_backbone, target)
        yield Written(f"export --to {kind}", target, readings)
    merged = folder / "merged"
    palm.merge([folder / "run" / "colour" / name for name in ("infer_model", "best_model")], merged)
    yield Written("merge", merged, {"load": functools.partial(_weights, merged)})
    target = folder / "converted"
    palm.convert(folder / "run" / "colour" / "infer_model", target)
    load = functools.partial(_backbone, target)
    yield Written("convert", target, {"inspect": functools.partial(inspect_directory, target), "load": load})


def _adapted(folder: Path, data: Path) -> Iterator[Written]:
    """A task with low-rank adapters on a frozen encoder, and adapters that another run starts from."""
    out = folder / "adapted"
    encoder = {"freeze": "backbone", "pretrain_path": str(folder / "export_hf")}
    settings = tiny_run.settings(data, out, effort="quick", **encoder)
    settings["tasks"]["colour"]["lora"] = {"rank": 2}
    (folder / "adapted.yaml").write_text(json.dumps(settings), encoding="utf-8")
    Controller(folder / "adapted.yaml", argv=[]).train()
    small = out / "colour" / "infer_model" / "lora"
    # Found before anything is damaged: with a damaged one, the newest that is whole would be an older one.
    newest = str(newest_checkpoint(out))
    readings = {
        "load": functools.partial(_weights, small.parent),
        "load lora": functools.partial(_weights, small),
        "resume": lambda: _checkpointed(folder / "adapted.yaml", newest),
        "report": lambda: page(read_run(out), analyses_of(read_run(out), predict=False)),
    }
    yield Written("train with adapters", out, readings)
    own = folder / "adapters"
    own.mkdir()
    for file in small.glob("adapter_*"):
        shutil.copy(file, own)  # as another program writes them, without a manifest
    started = tiny_run.settings(data, folder / "started", **encoder)
    started["tasks"]["colour"]["lora"] = {"from": str(own)}
    yield Written("adapters", own, {"start": lambda: _training(started).model.state_dict()})


def _training(settings: Any) -> Any:
    return Controller(settings, argv=[]).training()


def _checkpointed(settings: Path, newest: str) -> Any:
    training = _training(settings)
    load_checkpoint(training, Path(newest))
    return training.model.state_dict()


def _sentences(folder: Path, data: Path) -> Written:
    """A text encoder as a directory of sentence-transformers."""
    reader = palm.reader.EmbeddingReader(data / "vocab.txt", 8)
    encoder = palm.load_model(folder / "run" / "colour" / "infer_model").backbone
    InferenceModel("near", reader, encoder, palm.head.Embedding(16)).save(folder / "near")
    out = folder / "sentences"
    to_hugging_face(folder / "near", out)
    readings = {
        "inspect": functools.partial(inspect_directory, out),
        "load": functools.partial(_backbone, out),
    }
    return Written("export an embedding", out, readings)


def stopped_prediction(folder: Path) -> Written:
    """The journal of a prediction that was interrupted."""
    with suppress(KeyboardInterrupt), PredictionLog(folder, lambda: {"data": "x"}) as log:
        for k in range(3):
            log.append([{"label": k, "probs": [0.25, 0.75]}, {"label": 0}])
        raise KeyboardInterrupt
    return Written("predict, stopped", folder, {"resume": lambda: _resumed(folder)})


def _backbone(folder: Path) -> Any:
    return palm.load_backbone(folder).state_dict()


def _resumed(folder: Path) -> Any:
    log = PredictionLog(folder, lambda: {"data": "x"})
    log.resume()
    # What a damaged line begins is predicted again.
    found = list(log.chunks())
    return [*found, *([{"label": k, "probs": [0.25, 0.75]}, {"label": 0}] for k in range(len(found), 3))]


def _cache(folder: Path, data: Path) -> Written:
    reader = palm.load_model(folder / "run" / "colour" / "infer_model").reader
    cache, key = DataCache(folder / "rows"), key_of(reader, data / "colour.tsv")
    assert key is not None

    def read() -> Any:
        rows = cache.rows(reader, data / "colour.tsv", key)
        return [rows.digest, rows.lengths, {n: (c.values, c.offsets) for n, c in rows.columns.items()}]

    read()
    return Written("the data cache", cache.folder, {"rows": read})


def _graphs(folder: Path) -> Written:
    """The cache of ONNX graphs; a damaged one is made anew, here by a copy."""
    original, cache = folder / "export_onnx" / "model.onnx", Cache(folder / "graphs")

    def read() -> bytes:
        copy = functools.partial(shutil.copy, original)
        return cache.file("0" * 32, "model.onnx", "a graph", copy).read_bytes()

    read()
    return Written("the cache of graphs", cache.folder, {"file": read})


def _of_program(folder: Path, data: Path) -> Iterator[Written]:
    """The recipe of a trainer, and the note about a folder's holder."""
    out = folder / "trainer"
    reader = palm.reader.MaskLMReader(data / "vocab.txt", 8)
    reader.load_data(data / "words.tsv", 8)
    encoder = palm.backbone.BERT.from_config(tiny_run.settings(data, out))
    reader.register_with(encoder)
    trainer = palm.Trainer("words")
    trainer.build_forward(encoder, palm.head.MaskLM(16, len(tiny_run.WORDS)))
    trainer.build_backward(palm.optimizer.Adam(None, 1e-3))
    trainer.fit_reader(reader)
    trainer.set_saver(out, 5)
    trainer.train()
    yield Written(
        "a trainer", out, {"report": lambda: page(read_run(out), analyses_of(read_run(out), predict=False))}
    )
    held = folder / "held"
    with only_run_in(folder / "holder"):
        held.mkdir()
        shutil.copy(folder / "holder" / HOLDER, held)
    yield Written("a lock", held, {"holder": lambda: _holder(held)})


def _project(folder: Path) -> Written:
    out = folder / "project"
    write_project(out, {"cls": "cls"})
    for name in ("README.md", "run.sh"):
        (out / name).unlink()  # for people alone
    return Written("init", out, {"check": lambda: check(out / "config.yaml", measure=False).problems})


def _grid_config(folder: Path, data: Path, name: str) -> Path:
    settings = tiny_run.settings(data, folder / name, num_epochs=1)
    del settings["save_every_n_steps"]
    settings["target_tag"] = [1, 0]
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(settings), encoding="utf-8")
    return file


def _jobs(out: Path) -> Any:
    """What the processes of a grid read."""
    return [
        (read_record(folder / JOB, Job), read_config(folder / CONFIGURATION, argv=[]).resolved())
        for folder in sorted((out / "runs").iterdir())
    ]


def _comparison(folder: Path, data: Path) -> Written:
    config = _grid_config(folder, data, "compared")
    out = folder / "comparison"
    palm.compare(config, seeds=2, output=out, keep_models=True)
    comparing.outcome_of = functools.partial(comparing.outcome_of, resamples=20)
    setup = setup_of(read_config(config, argv=[]), {}, None)
    pool = Source(str(config), ".", []).pool(Grid(out), "compare", 1, setup.settings)
    again = {
        "again": lambda: comparing._compared(setup, [setup], [], pool, 2, False).as_json(),
        "report": lambda: comparison_page(out),
        "jobs": lambda: _jobs(out),
    }
    return Written("compare", out, again)


def _sweep(folder: Path, data: Path) -> Written:
    config = _grid_config(folder, data, "swept")
    out = folder / "sweep"
    space = {"learning_rate": [1e-4, 1e-2], "batch_size": [8, 16]}
    palm.sweep(config, space, output=out)
    found = sweeping.space_of(space)
    source = Source(str(config), ".", [])

    def again() -> Any:
        pool = sweeping.Pool(Grid(out), ["no such command"], [{}])
        return str(sweeping._written(out, sweeping._all_tried(pool, source, found, False), source))

    return Written("sweep", out, {"again": again, "jobs": lambda: _jobs(out)})


def samples(folder: Path, with_grids: bool = True) -> list[Sample]:
    """All samples, written below `folder`."""
    logging.disable(logging.CRITICAL)
    pages.environment = functools.cache(pages.environment)  # templates are compiled once, not for each page
    made = written(folder, with_grids)
    return list(itertools.chain.from_iterable(each.samples() for each in made))
