"""palm on Ray and Spark, beside palm alone: the same rows, and the time per row.

    python benchmarks/on_ray.py FOLDER prepare --rows 200000    # data and a small model
    python benchmarks/on_ray.py FOLDER palm                     # palm predict
    python benchmarks/on_ray.py FOLDER shards --count 16 --kill 3
    python benchmarks/on_ray.py FOLDER ray --actors 1 --kill 1  # Dataset.map_batches
    python benchmarks/on_ray.py FOLDER spark                    # mapInPandas, local mode
    python benchmarks/on_ray.py FOLDER overhead --rows 12288    # each adapter beside palm, in turns
    python benchmarks/on_ray.py FOLDER train --kill 5           # a worker killed after a checkpoint
    python benchmarks/on_ray.py FOLDER serve --kill 10          # two replicas, one killed now and then

Rows are sorted by id and compared with those of `palm`: labels must be equal, and probabilities to 1e-5,
because the batches are others; the file of `shards` must have the same bytes. `train` compares the bits of
all models and checkpoints with those of an uninterrupted run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from itertools import islice
from operator import sub
from pathlib import Path
from typing import Any

import torch

import palm
import palm.ray
from palm.core.io import checksum
from palm.core.process import START

WORDS = 2000
CLASSES = 5
BATCH = 4096


def prepare(folder: Path, rows: int, width: int) -> dict[str, Any]:
    """Write rows with 3 to 40 words, and train a small classifier on a few of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    names = [f"w{number}" for number in range(WORDS)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")

    def lines(count: int) -> Iterator[str]:
        for number in range(count):
            label = rng.randrange(CLASSES)
            words = rng.choices(names, k=rng.randint(3, 40)) + [names[label]] * 2
            yield json.dumps({"id": number, "label": label, "text_a": " ".join(words)}) + "\n"

    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(lines(2000))
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for line in lines(rows):
            row = json.loads(line)
            del row["label"]
            file.write(json.dumps(row) + "\n")
    (folder / "width").write_text(str(width))
    palm.Controller(config_of(folder), argv=[]).train()
    return {"rows": rows}


def config_of(folder: Path) -> dict[str, Any]:
    """A run on two layers, whose width was given when the data were prepared."""
    width = int((folder / "width").read_text())
    return {
        "task_instance": "cls",
        "tasks": {
            "cls": {
                "train_file": str(folder / "train.jsonl"),
                "reader": "cls",
                "paradigm": "cls",
                "n_classes": CLASSES,
            }
        },
        "backbone": "bert",
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 2 * width,
        "vocab_size": WORDS + 5,
        "max_position_embeddings": 64,
        "vocab_path": str(folder / "vocab.txt"),
        "max_seq_len": 48,
        "batch_size": 32,
        "num_epochs": 2,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "save_path": str(folder / "run"),
        "overwrite": True,
    }


def model_of(folder: Path) -> Path:
    return folder / "run" / "cls" / "infer_model"


def predict(folder: Path, output: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start `palm predict` in a process of its own, with one thread."""
    given = ["--model", str(model_of(folder)), "--input", str(folder / "rows.jsonl"), "--output", str(output)]
    return subprocess.Popen(
        [*START, "predict", *given, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def alone(folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    assert predict(folder, folder / "palm.jsonl").wait() == 0
    return {"seconds": time.monotonic() - began}


def shards(folder: Path, count: int, kills: int) -> dict[str, Any]:
    """Predict all shards, two at a time; kill some in the middle, and run these again with --resume."""
    output = folder / "shards.jsonl"
    rng = random.Random(count)
    doomed = set(rng.sample(range(1, count + 1), kills))
    waiting = list(range(1, count + 1))
    killed = []
    active: dict[int, subprocess.Popen[bytes]] = {}
    while waiting or active:
        while waiting and len(active) < 2:
            number = waiting.pop(0)
            active[number] = predict(folder, output, "--shard", f"{number}/{count}", "--resume")
        time.sleep(0.1)
        for number, process in list(active.items()):
            log = folder / f".predictions.shards.jsonl.{number}-of-{count}.resume"
            if number in doomed and log.exists() and log.stat().st_size > rng.randint(200_000, 1_500_000):
                process.kill()
                doomed.remove(number)
            if process.poll() is not None:
                del active[number]
                if process.returncode == -signal.SIGKILL:
                    killed.append({"shard": number, "bytes": log.stat().st_size})
                    waiting.append(number)
                else:
                    assert process.returncode == 0, number
    assert predict(folder, output, "--shard", f"merge/{count}").wait() == 0
    return {"killed": killed, "same_bytes": output.read_bytes() == (folder / "palm.jsonl").read_bytes()}


def on_ray(folder: Path, actors: int, kills: int, batch_size: int) -> dict[str, Any]:
    """Predict with `map_batches`, and write parts under the ids of their rows."""
    import ray

    start_ray()
    began = time.monotonic()
    rows = ray.data.read_json(str(folder / "rows.jsonl"), lines=True, override_num_blocks=40)
    found = rows.map_batches(
        palm.ray.Predictor,
        fn_constructor_args=[str(model_of(folder))],
        fn_constructor_kwargs={"device": "cpu"},
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
    )
    killed = 0
    table: list[dict[str, Any]] = []
    for row in found.iter_rows():
        table.append(row)
        # Spread over the rows, once the actors predict.
        if killed < kills and len(table) > (killed + 1) * 20_000:
            killed += kill_process("MapWorker")
    seconds = time.monotonic() - began
    ray.shutdown()
    return {"seconds": seconds, "killed": killed, **compared(folder, table)}


def start_ray(cpus: int = 2) -> None:
    import ray

    memory = 200 << 20
    ray.init(
        num_cpus=cpus,
        object_store_memory=memory,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )


def kill_process(name: str) -> int:
    """Kill a process of Ray whose command line has this name; return the number of killed ones."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if words.startswith(b"ray::") and name.encode() in words:
                os.kill(int(process.name), signal.SIGKILL)
                return 1
    return 0


def spark(folder: Path) -> dict[str, Any]:
    """Predict with Spark's `mapInPandas` in local mode."""
    session = spark_session()
    began = time.monotonic()
    model = str(model_of(folder))

    def predicted(frames: Iterator[Any]) -> Iterator[Any]:
        predictor = palm.ray.Predictor(model, device="cpu")
        for frame in frames:
            yield predictor(frame)

    rows = session.read.schema("id long, text_a string").json(str(folder / "rows.jsonl")).repartition(8)
    found = rows.mapInPandas(predicted, "id long, text_a string, label long, probability double")
    table = [row.asDict() for row in found.toLocalIterator()]
    seconds = time.monotonic() - began
    session.stop()
    return {"seconds": seconds, **compared(folder, table)}


def spark_session() -> Any:
    """Start Spark in local mode, with one thread."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.OMP_NUM_THREADS": "1",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def compared(folder: Path, table: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare rows, sorted by id, with those of `palm predict`."""
    table.sort(key=lambda row: row["id"])
    with (folder / "palm.jsonl").open(encoding="utf-8") as file:
        expected = [json.loads(line) for line in file]
    ids = [row["id"] for row in table]
    pairs = list(zip(table, expected, strict=False))
    return {
        "rows": len(table),
        "lost": len({row["id"] for row in expected} - set(ids)),
        "doubled": len(ids) - len(set(ids)),
        "other_labels": sum(mine["label"] != theirs["label"] for mine, theirs in pairs),
        "equal_probabilities": sum(mine["probability"] == theirs["probability"] for mine, theirs in pairs),
        "largest_difference": max(abs(mine["probability"] - theirs["probability"]) for mine, theirs in pairs),
    }


def overhead(folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    """The time per row of each adapter, in turns, from the end of the first batch to the end of the last.

    So neither the start of processes nor loading counts. It is the CPU time of the process that predicts, and
    for training the time in the run's history. Plain palm is `predict_file`, and for training a Controller.
    Everything has one thread, and one process or actor.
    """
    import ray

    torch.set_num_threads(1)
    with (folder / "rows.jsonl").open("rb") as file:
        (folder / "few.jsonl").write_bytes(b"".join(islice(file, rows)))
    start_ray()
    ray.data.DataContext.get_current().enable_progress_bars = False
    ways: dict[str, Callable[[], float]] = {
        "predict_file": lambda: of_file(folder, rows),
        "--shard": lambda: of_file(folder, rows, shard="1/1"),
        "map_batches": lambda: of_dataset(folder),
        "mapInPandas": lambda: of_spark(folder),
        "train": lambda: of_training(folder, lambda run: palm.Controller(run, argv=[]).train()),
        "palm.ray.train": lambda: of_training(folder, lambda run: palm.ray.train(run, workers=1)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            times[name].append(run() * 1e6)
            print(name, times[name], file=sys.stderr, flush=True)
    ray.shutdown()
    plain = {name: "train" if "train" in name else "predict_file" for name in ways}
    ratios = {
        name: sorted(a / b for a, b in zip(values, times[plain[name]], strict=True))
        for name, values in times.items()
    }
    return {"microseconds_per_row": times, "ratios": ratios}


def of_file(folder: Path, rows: int, **how: Any) -> float:
    """CPU seconds per row of `predict_file`."""
    model = palm.load_model(model_of(folder), device="cpu")
    model.predict(["w1"])
    began = time.process_time()
    model.predict_file(folder / "few.jsonl", folder / "few-predicted.jsonl", **how)
    return (time.process_time() - began) / rows


class TimedPredictor(palm.ray.Predictor):
    """Adds the CPU time of its process at the end of each batch."""

    def __call__(self, batch: Any) -> Any:
        found = super().__call__(batch)
        found["at"] = [time.process_time()] * len(found["id"])
        return found


def after_first(at: Sequence[float]) -> float:
    """CPU seconds per row after the first batch, given those of each row."""
    return (max(at) - min(at)) / sum(each > min(at) for each in at)


def of_dataset(folder: Path) -> float:
    """CPU seconds per row of the actor of `map_batches` after its first batch."""
    import ray

    rows = ray.data.read_json(str(folder / "few.jsonl"), lines=True, override_num_blocks=3)
    found = rows.map_batches(
        TimedPredictor,
        fn_constructor_args=[str(model_of(folder))],
        fn_constructor_kwargs={"device": "cpu"},
        batch_size=BATCH // 2,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    return after_first([row["at"] for row in found.iter_rows()])


def of_spark(folder: Path) -> float:
    """CPU seconds per row of the process of `mapInPandas` after its first batch."""
    session = spark_session()
    model = str(model_of(folder))

    def predicted(frames: Iterator[Any]) -> Iterator[Any]:
        predictor = palm.ray.Predictor(model, device="cpu")
        for frame in frames:
            found = predictor(frame)
            found["at"] = time.process_time()
            yield found

    rows = session.read.schema("id long, text_a string").json(str(folder / "few.jsonl")).coalesce(1)
    types = "id long, text_a string, label long, probability double, at double"
    at = [row["at"] for row in rows.mapInPandas(predicted, types).select("at").collect()]
    session.stop()
    return after_first(at)


def of_training(folder: Path, train: Callable[[dict[str, Any]], Any]) -> float:
    """Seconds per row of a training, without its first steps."""
    save_path = folder / "timed"
    run = {**config_of(folder), "save_path": str(save_path), "progress": "none", "num_epochs": 1}
    run |= {"overwrite": False, "print_every_n_steps": 10, "num_devices": 1}
    shutil.rmtree(save_path, ignore_errors=True)
    train(run)
    lines = (save_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if event["event"] == "step"][1:]
    return sum(event["seconds"] for event in steps) / sum(event["rows"] for event in steps)


def train(folder: Path, kills: int) -> dict[str, Any]:
    """Train with two workers, kill one at a random moment after a checkpoint, and compare the bits."""
    run = {
        **config_of(folder),
        "num_epochs": 4,
        "save_every_n_steps": 5,
        "keep_last_n": 2,
        "progress": "none",
    }
    run = {**run, "overwrite": False}
    start_ray()
    began = time.monotonic()
    palm.ray.train({**run, "save_path": str(folder / "trained" / "whole")}, workers=2)
    whole = {"seconds": time.monotonic() - began, "bits": bits_of(folder / "trained" / "whole")}
    moments = []
    rng = random.Random(kills)
    for number in range(kills):
        place = folder / "trained" / f"killed_{number}"
        killer = threading.Thread(target=kill_after, args=(place, rng.randint(5, 200), moments))
        killer.start()
        began = time.monotonic()
        palm.ray.train({**run, "save_path": str(place)}, workers=2)
        killer.join()
        moments[-1] |= {"seconds": time.monotonic() - began, "same_bits": bits_of(place) == whole["bits"]}
    import ray

    ray.shutdown()
    return {"whole": whole["seconds"], "killed": moments}


def kill_after(place: Path, step: int, moments: list[dict[str, Any]]) -> None:
    """Kill a worker when the history of a run has passed a step."""
    reached = 0
    while reached < step:
        time.sleep(0.02)
        with suppress(OSError, ValueError):
            lines = (place / "history.jsonl").read_text(encoding="utf-8").splitlines()
            reached = max(json.loads(line)["step"] for line in lines)
    moments.append({"step": reached, "workers": kill_process("RayTrainWorker")})


def bits_of(run: Path) -> dict[str, str]:
    return {str(file.relative_to(run)): checksum(file) for file in run.rglob("*.safetensors")}


def serve(folder: Path, kills: int) -> dict[str, Any]:
    """Ask two replicas over HTTP; kill one of them at random moments, and repeat a request that fails."""
    import ray
    from ray import serve as ray_serve

    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text_a"] for line in islice(file, 512)]
    expected = palm.load_model(model_of(folder), device="cpu").predict(texts)
    start_ray()
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}
    ray_serve.run(palm.ray.deployment(model_of(folder), load={"device": "cpu"}, **options))
    counts = dict.fromkeys(("asked", "answered", "repeated", "wrong", "killed"), 0)
    is_over = threading.Event()

    def ask(number: int) -> None:
        while not is_over.is_set():
            number = (number + 7) % len(texts)
            counts["asked"] += 1
            while (found := post(texts[number])) is None:
                counts["repeated"] += 1
                time.sleep(0.5)
            counts["answered"] += 1
            differences = map(sub, found["logits"], expected[number]["logits"])
            counts["wrong"] += max(map(abs, differences)) > 1e-5

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    rng = random.Random(kills)
    for _ in range(kills):
        time.sleep(rng.uniform(7, 11))
        counts["killed"] += kill_process("ServeReplica")
    time.sleep(3)
    is_over.set()
    for thread in threads:
        thread.join()
    ray_serve.shutdown()
    ray.shutdown()
    return counts


def post(text: str) -> dict[str, Any] | None:
    """Return the record of a text; None if the request failed, as with a replica that is killed."""
    body = json.dumps({"texts": [text]}).encode()
    request = urllib.request.Request("http://127.0.0.1:8000/", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            record: dict[str, Any] = json.loads(answer.read())["results"][0]["cls"]
    except (OSError, HTTPException):
        return None
    return record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "what", choices=["prepare", "palm", "shards", "ray", "spark", "overhead", "train", "serve"]
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=64, help="of the prepared model")
    given = parser.parse_args()
    folder = given.folder.absolute()
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "prepare": lambda: prepare(folder, given.rows, given.width),
        "palm": lambda: alone(folder),
        "shards": lambda: shards(folder, given.count, given.kill),
        "ray": lambda: on_ray(folder, given.actors, given.kill, given.batch_size),
        "spark": lambda: spark(folder),
        "overhead": lambda: overhead(folder, given.rows, given.rounds),
        "train": lambda: train(folder, given.kill),
        "serve": lambda: serve(folder, given.kill),
    }
    print(json.dumps(ways[given.what]()))


if __name__ == "__main__":
    sys.exit(main())
