"""The demos run from any working directory and leave what the document says they leave."""

from __future__ import annotations

import json
import re
from pathlib import Path

import palm
from helpers.loaded import run_script

ROOT = Path(__file__).resolve().parents[2]


def run(demo: str, cwd: Path, *arguments: str) -> str:
    """What a demo prints and logs when a user starts it in `cwd`; it must end well."""
    script = ROOT / "demos" / demo / "demo.py"
    status, output = run_script(script, cwd, "--save_path", str(cwd / "out"), *arguments)
    assert status == 0, output
    return output


def test_demo1_trains_one_task_and_saves_it(tmp_path: Path) -> None:
    output = run("demo1", tmp_path, "--num_epochs", "0.05", "--print_every_n_steps", "1")
    assert "Global step: 1. Task: mrqa, step 1/" in output
    assert "mrqa: train finished!" in output
    assert (tmp_path / "out" / "mrqa" / "infer_model" / "model.safetensors").is_file()


def test_demo2_trains_three_tasks_and_prints_the_exact_match(tmp_path: Path) -> None:
    output = run("demo2", tmp_path, "--num_epochs", "0.05", "--pred_output_path", str(tmp_path / "answers"))
    assert "exact match " in output
    answers = json.loads((tmp_path / "answers" / "predictions.json").read_text(encoding="utf-8"))
    dev = json.loads((ROOT / "data" / "mrqa" / "dev.json").read_text(encoding="utf-8"))
    questions = [q["id"] for a in dev["data"] for p in a["paragraphs"] for q in p["qas"]]
    assert list(answers) == questions
    assert (tmp_path / "answers" / "nbest_predictions.json").is_file()
    assert not (tmp_path / "out" / "mlm4mrqa").exists()


def test_demo3_saves_six_targets_of_which_some_share_a_layer(tmp_path: Path) -> None:
    output = run("demo3", tmp_path, "--num_epochs", "0.05")
    assert output.count("train finished!") == 6
    for number in range(1, 7):
        assert (tmp_path / "out" / f"cls{number}" / "infer_model" / "config.json").is_file()


def test_demo9_predicts_the_labels_of_a_message(tmp_path: Path) -> None:
    output = run("demo9", tmp_path, "--max_steps", "2", "--warmup_proportion", "0")
    assert "micro_f1 " in output
    assert (tmp_path / "out" / "requests" / "best_model" / "model.safetensors").is_file()


def test_demo10_finds_spans_and_their_relations(tmp_path: Path) -> None:
    output = run("demo10", tmp_path, "--max_steps", "2", "--warmup_proportion", "0")
    assert "ents: span_f1 " in output
    assert "rels: relation_strict_f1 " in output


# The demos that put components together in Python run from any working directory.


def test_demo4_trains_slots_and_intents_and_predicts_them_together(tmp_path: Path) -> None:
    output = run("demo4", tmp_path, "--num_epochs", "0.1")
    assert "slot: expected train steps 6." in output
    assert "intent train finish!" in output
    assert re.search(r"slots: entity F1 \d\.\d+; intents: \d+ of 200 right", output)
    for task in ("slot", "intent"):
        assert (
            len((tmp_path / "out" / "predict" / task / "predictions.json").read_text("utf-8").splitlines())
            == 200
        )


def test_demo8_keeps_the_best_model(tmp_path: Path) -> None:
    output = run("demo8", tmp_path, "--num_epochs", "1")
    assert "epoch 0: loss " in output
    assert palm.load_model(tmp_path / "out" / "best").task == "intent"
