"""The card of a saved model: in the Hub's form, with the numbers of the run."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import EvalResult, ModelCard

import palm
from helpers import article, runs, tiny
from helpers.saved import forge, in_task
from palm.export import to_hugging_face
from palm.report.history import read_history
from palm.train import checkpoint as training_metadata
from palm.train.model_card import model_card


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train(tmp_path_factory.mktemp("card"), "cls", "mlm", target_tag="1,0", num_epochs=1)


def test_the_card_is_one_that_the_hub_understands(run: Path) -> None:
    card = ModelCard.load(run / "cls" / "infer_model" / "README.md")
    facts = card.data.to_dict()
    assert (facts["library_name"], facts["pipeline_tag"]) == ("palm", "text-classification")
    assert facts["tags"] == ["palm", "bert", "cls", "multi-task"]
    assert facts["metrics"] == ["accuracy", "macro_f1"]
    results: list[EvalResult] = card.data.eval_results
    last = read_history(run).evaluations[-1].scores["cls"]
    found = [(each.metric_type, each.metric_name, each.metric_value) for each in results]
    assert found == [("accuracy", "accuracy", last["accuracy"]), ("macro_f1", "macro_f1", last["macro_f1"])]
    assert {(each.dataset_name, each.task_name) for each in results} == {("dev.tsv", "cls")}


def test_the_card_shows_the_data_and_the_labels(run: Path) -> None:
    text = (run / "cls" / "infer_model" / "README.md").read_text(encoding="utf-8")
    for name, rows in (("cls.tsv", 40), ("dev.tsv", 13)):
        sha256 = hashlib.sha256((run.parent / name).read_bytes()).hexdigest()
        assert f"| {name} | {rows} | `{sha256}` |" in text
    assert "## Labels\n\n`0`, `1`, `2`, `3`\n" in text
    assert "Trained together with `mlm`." in text
    assert "10 of 10 planned steps of this task (1 epochs)" in text
    assert f"Versions: palm {palm.__version__}, torch " in text
    assert str(run.parent) not in text  # where the machine has its files is nobody's business


def test_the_card_has_scores_beside_interval_and_baseline_labels_limits_and_an_example_that_was_run(
    run: Path,
) -> None:
    text = (run / "cls" / "best_model" / "README.md").read_text(encoding="utf-8")
    history = read_history(run)
    best = history.best("cls")
    assert best is not None
    rows, value = best.rows["cls"], best.scores["cls"]["accuracy"]
    constant = rows.baseline["accuracy"]
    for name, score in best.scores["cls"].items():
        low, high = rows.intervals[name]
        shown = f"{score:.2f} | {low:.2f} to {high:.2f} | {rows.baseline[name]:.2f}"  # 13 rows
        assert f"| {name} | {shown} |" in text
    for label, (precision, recall, f1, true, _) in rows.labels.items():
        assert f"| {label} | {precision:.3f} | {recall:.3f} | {f1:.3f} | {true} |" in text
    assert [*rows.averages] == ["micro average", "macro average", "weighted average"]
    for name, (precision, recall, f1, true, _) in rows.averages.items():
        assert f"| *{name}* | {precision:.3f} | {recall:.3f} | {f1:.3f} | {true} |" in text
    limits = text.partition("## Limits")[2].partition("## Training")[0]
    assert "at most 24 tokens" in limits
    assert "It knows the 4 labels above, and no others." in limits
    assert "chosen by the scores above" in limits
    assert ("no better than always the same answer" in limits) == (value <= constant)
    never = [label for label, each in rows.labels.items() if each[3] and not each[2]]
    assert all(f"`{label}`" in limits for label in never)


def test_an_export_has_the_card_for_transformers(run: Path, tmp_path: Path) -> None:
    to_hugging_face(run / "cls" / "infer_model", tmp_path / "hf")
    card = ModelCard.load(tmp_path / "hf" / "README.md")
    assert card.data.library_name == "transformers"
    assert "model = BertForSequenceClassification.from_pretrained(" in card.text
    assert "import palm" not in card.text
    ours = ModelCard.load(run / "cls" / "infer_model" / "README.md")
    assert card.text.partition("## Data")[2] == ours.text.partition("## Data")[2] != ""


def description(task: str = "t", training: Any = None, **more: Any) -> dict[str, Any]:
    parts = {name: {"name": "cls", "settings": {}} for name in ("reader", "paradigm")}
    own = {**parts, "training": training}
    encoder = {"name": "ernie", "settings": {"num_hidden_layers": 3, "hidden_size": 8}}
    return {"backbone": encoder, "tasks": {task: own}, **more}


def training(**more: Any) -> dict[str, Any]:
    return {
        "step": 7,
        "task_step": 7,
        "expected_steps": 9,
        "epochs": 1.5,
        "tasks": {"t": 7},
        "data": {"dev_file": {"name": "a|b.tsv", "rows": 3, "sha256": "00"}},
        "evaluation": {"step": 7, "scores": {"pearson": None, "mse": 0.5}},
        "settings": {"tasks": {"t": {"batch_size": 4, "head_learning_rate": None}}, "random_seed": 1},
        "versions": {"palm": "1"},
        **more,
    }


def test_a_score_that_is_not_a_number_is_not_a_result() -> None:
    text = model_card(description(training=training()))
    assert "| pearson | NaN |  |  |\n| mse (lower is better) | 0.5000 |  |  |" in text
    results = ModelCard(text).data.eval_results
    assert [(each.metric_type, each.metric_name, each.metric_value) for each in results] == [
        ("mse", "mse", 0.5)
    ]
    assert "a\\|b.tsv" in text


def test_scores_of_an_earlier_step_are_none_of_the_model() -> None:
    text = model_card(description(training=training(step=8)))
    assert "model-index" not in text
    assert {"7", "8"} <= set(re.findall(r"step (\d+)", text))


def test_labels_are_shown_as_text_and_not_without_end() -> None:
    text = model_card(description(), {"t": ["a`b\nc", *map(str, range(60))]})
    assert "`a'b c`, `0`, " in text
    assert "`48` … and 11 more" in text


@pytest.mark.parametrize(
    ("path", "base", "shown"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2", None),
        ("/home/anna/models/bert", None, "bert"),
        (None, None, None),
    ],
)
def test_the_base_model_is_named_if_it_is_one_of_the_hub(
    path: str | None, base: str | None, shown: str | None
) -> None:
    card = ModelCard(model_card(description(run={"global": {"pretrain_path": path}})))
    assert card.data.base_model == base
    named = shown or base
    assert (f", from `{named}`." in card.text) == (named is not None)
    assert "anna" not in card.text


def test_damage_of_what_the_card_is_made_of_is_damage(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = palm.load_model(run / "cls" / "infer_model")
    model.save(folder, training={"cls": {**training(), "settings": {"tasks": {"cls": {}}}}})
    forge(folder, "config.json", in_task(lambda own: {**own, "training": {"step": 1}}))
    with pytest.raises(palm.StorageError, match=r"config\.json"):
        to_hugging_face(folder, tmp_path / "hf")


def test_a_trainers_model_has_a_card(tmp_path: Path) -> None:
    folder = article.write_files(tmp_path)
    trainer = article.program(folder, num_epochs=1)
    trainer.train(print_steps=1000)
    trainer.save(tmp_path / "out", "predict")
    text = (tmp_path / "out" / "slot" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: token-classification" in text
    assert "Trained together with `intent`." in text
    assert "## Data" in text


def test_a_model_is_as_large_beside_8_tasks_as_beside_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_metadata, "MAX_TASKS", 2)
    tiny.write_files(tmp_path)
    found = []
    for count in (4, 8):
        given = tiny.config(tmp_path, "cls", num_hidden_layers=1, max_steps=count)
        names = [f"task{k}" for k in range(count)]
        given |= {"task_instance": names, "tasks": dict.fromkeys(names, given["tasks"]["cls"])}
        palm.Controller(given, argv=[]).train()
        model = tmp_path / "out" / "task3" / "infer_model"
        found.append({name: (model / name).stat().st_size for name in ("config.json", "README.md")})
        text = (model / "README.md").read_text(encoding="utf-8")
        assert f"`task0`, `task1` and {count - 3} more." in text
    few, many = found
    assert few["config.json"] == many["config.json"]
    assert few["README.md"] == pytest.approx(many["README.md"], abs=20)  # digits of the example


def test_nothing_of_others_is_more_than_text_in_a_card() -> None:
    evil = "<img src=x onerror=a()>[x](javascript:a())\x1b[31m\n# b```"
    facts = training(
        tasks={evil: 7, "t": 7},
        data={"dev_file": {"name": evil, "rows": 3, "sha256": "00"}},
        settings={"tasks": {evil: {"note": evil}}},
        warnings=[evil],
    )
    made = {"task": evil, "backbone": {"name": evil, "settings": {}}, "training": facts}
    text = model_card(description(**made), {evil: [evil, "b"]}).partition("\n---\n")[2]
    assert "\x1b" not in text
    outside = re.sub(r"`[^`\n]+`", "", re.sub(r"```\w+\n.*?```", "", text, flags=re.DOTALL))
    assert not re.search(r"<|`|(?<!\\)\[|^# b", outside, re.MULTILINE)


def test_a_card_has_the_warnings_of_the_run(folder: Path) -> None:
    rows = ["label\ttext_a", *["0\tred qqq door"] * 10, *["1\tred"] * 30]
    (folder / "cls.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    tiny.controller(folder, "cls", "match", max_steps=4).train()
    cards = [
        (folder / "out" / task / "infer_model" / "README.md").read_text("utf-8") for task in ("cls", "match")
    ]
    assert "- cls.tsv: 10 of 60 (16.7 %) tokens" in cards[0].partition("## Limits")[2]
    assert "tokens are not in the vocabulary" not in cards[1]
    assert str(folder) not in cards[0]
