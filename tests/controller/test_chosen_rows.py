"""One table for several tasks, and parts of it: which rows are trained on, evaluated on and predicted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import article, tiny
from helpers.messages import raises
from helpers.reader_files import write_rows
from palm.check import check
from palm.config import yaml_text
from palm.controller.controller import Controller
from palm.controller.rows import RowKeys, sample, split
from palm.predict.inference import InferenceModel
from palm.reader import ClassifyReader, MRCReader
from palm.train.loop import Training


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Requests with intent and slots in one table, with further columns."""
    article.write_files(tmp_path)
    slots = (tmp_path / "slot.tsv").read_text("utf-8").splitlines()[1:]
    intents = (tmp_path / "intent.tsv").read_text("utf-8").splitlines()[1:]
    rows = []
    for number, (slot, intent) in enumerate(zip(slots, intents, strict=True)):
        words, tags = (cell.split("\2") for cell in slot.split("\t"))
        lang = ["en", "de", "fr"][number % 3]
        rows.append({"tokens": words, "slots": tags, "intent": int(intent[0]), "lang": lang})
        rows[-1]["said"] = " ".join(words)
    save(tmp_path, rows)
    return tmp_path


def save(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def load(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "all.jsonl").read_text("utf-8").splitlines()]


def config(folder: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    slot = {"reader": "seq_label", "paradigm": "seq_label", "label_map": dict(article.LABELS)}
    slot |= {"columns": {"text_a": "tokens", "label": "slots"}}
    intent = {"reader": "cls", "paradigm": "cls", "n_classes": 2}
    intent |= {"columns": {"text_a": "said", "label": "intent"}}
    known = {"slot": slot, "intent": intent}
    made = tiny.config(folder, "cls", **{"train_file": str(folder / "all.jsonl"), **settings})
    names = tasks or ("slot", "intent")
    return made | {"task_instance": list(names), "tasks": {name: known[name] for name in names}}


def digests(training: Training) -> list[str]:
    return [task.stream.rows.digest for task in training.tasks]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> InferenceModel:
    place = article.write_files(tmp_path_factory.mktemp("trained"))
    save(place, [{"said": f"{word} owns it", "intent": k} for k in (0, 1) for word in ("who", "anna") * 4])
    Controller(config(place, "intent", num_epochs=1), argv=[]).train()
    model: InferenceModel = palm.load_model(place / "out" / "intent" / "infer_model")
    return model


def texts(task: Any, path: Path) -> list[str]:
    return [example.text_a for example in task.reader.read(path, True)]


def test_one_table_is_two_files(folder: Path) -> None:
    made = config(folder)
    made["tasks"]["intent"]["columns"] = {"text_a": "tokens", "label": "intent"}
    one = Controller(made, argv=[]).training()
    del made["train_file"]
    for name in ("slot", "intent"):
        made["tasks"][name] |= {"train_file": str(folder / f"{name}.tsv"), "columns": {}}
    two = Controller(made, argv=[]).training()
    assert digests(one) == digests(two)
    assert [step.loss for step in one.steps()] == [step.loss for step in two.steps()]


def test_each_task_trains_on_the_rows_that_have_its_label(folder: Path) -> None:
    rows = load(folder)
    for number, row in enumerate(rows):
        if number % 3 == 0:
            row["intent"] = None
        if number % 3 == 1:
            del row["slots"]
    save(folder, rows)
    slot, intent = Controller(config(folder), argv=[]).training().tasks
    assert texts(intent, intent.task.train_file) == [row["said"] for row in rows if row["intent"] is not None]
    assert [example.words for example in slot.reader.read(slot.task.train_file, True)] == [
        row["tokens"] for row in rows if "slots" in row
    ]
    made = config(folder)
    made["tasks"]["intent"]["share_rows_with"] = "slot"
    shared = Controller(made, argv=[]).training()
    assert [len(task.stream.rows) for task in shared.tasks] == [40, 40]
    assert all(float(step.loss) > 0 for step in shared.steps())


def test_parts_are_found_again_after_training(folder: Path) -> None:
    made = config(folder, split={"dev": 0.2, "test": 0.1}, num_epochs=1)
    controller = Controller(made, argv=[])
    parts = {}
    for task in controller.chosen.tasks:
        reader = ClassifyReader(folder / "vocab.txt", 24, columns={"text_a": "said", "label": "intent"})
        parts[task.name] = [
            [each.text_a for each in reader.read(getattr(task.settings, f"{part}_file"), True)]
            for part in ("train", "dev", "pred")
        ]
    assert parts["slot"] == parts["intent"]
    train, dev, test = parts["intent"]
    assert Counter(train + dev + test) == Counter(row["said"] for row in load(folder))
    assert not {*train} & {*dev, *test}
    assert not {*dev} & {*test}
    controller.train()
    again = Controller(made, for_train=False, argv=[])
    assert len(again.pred("intent")) == len(test)
    assert again.chosen.tasks[1].settings.dev_file == folder / "out" / "intent.dev.rows.json"
    assert "accuracy" in again.evaluate("intent")
    with (folder / "all.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(palm.DataError, match=r"all\.jsonl"):
        again.evaluate("intent")


def test_every_controller_says_once_how_many_rows_were_chosen(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "palm")
    made = config(folder, "intent", split={"dev": 0.2})
    del made["learning_rate"]
    for count in (1, 2):
        Controller(made, argv=[])
        told = [line for line in caplog.messages if "intent: chosen from all.jsonl" in line]
        assert len(told) == count, told


def test_a_check_shows_which_rows_are_chosen_and_where_they_are_found_again(folder: Path) -> None:
    made = config(folder, "intent", split={"dev": 0.2, "seed": 3}, where={"lang": ["en", "de"]}, num_epochs=1)
    found = check(made, measure=False)
    [task] = found.data
    assert [file.role for file in task.files][:2] == ["train", "dev"]
    wanted = sum(row["lang"] != "fr" for row in load(folder))
    assert sum(file.counts.examples for file in task.files[:2]) == wanted
    for file in task.files[:2]:
        assert file.table == folder / "all.jsonl"
    Controller(made, argv=[]).train()
    again = Controller(made, for_train=False, argv=[]).chosen.tasks[0]
    assert again.settings.dev_file == folder / "out" / "intent.dev.rows.json"
    names = {path.name for path in (folder / "out").glob("*.rows.json")}
    assert names == {"intent.train.rows.json", "intent.dev.rows.json"}


def test_a_squad_file_is_split_by_contexts(tmp_path: Path) -> None:
    tiny.write_files(tmp_path)
    nested = json.loads((tmp_path / "mrc.json").read_text("utf-8"))
    paragraphs = [each for article in nested["data"] for each in article["paragraphs"]]
    for paragraph in paragraphs:
        [first, *_] = paragraph["qas"]
        paragraph["qas"].append({**first, "id": first["id"] + "-again"})
    (tmp_path / "mrc.json").write_text(json.dumps(nested), encoding="utf-8")
    made = tiny.config(tmp_path, "mrc", split={"dev": 0.25, "test": 0.25}, max_steps=1)
    made["tasks"]["mrc"].pop("pred_file")
    controller = Controller(made, argv=[])
    [task] = controller.chosen.tasks
    reader = MRCReader(tmp_path / "vocab.txt", 24, 8, 8)
    parts = [
        list(reader.read(getattr(task.settings, f"{part}_file"), True)) for part in ("train", "dev", "pred")
    ]
    assert Counter(each.id for part in parts for each in part) == Counter(
        qa["id"] for paragraph in paragraphs for qa in paragraph["qas"]
    )
    contexts = [{each.context for each in part} for part in parts]
    assert not contexts[0] & contexts[1] | contexts[0] & contexts[2] | contexts[1] & contexts[2]
    assert all(contexts)
    controller.train()
    again = Controller(made, for_train=False, argv=[])
    assert {*again.pred("mrc")} == {each.id for each in parts[2]}
    assert "f1" in again.evaluate("mrc")


def test_where_and_sample_choose_training_rows(folder: Path) -> None:
    (intent,) = Controller(config(folder, "intent", where={"lang": ["en", "de"]}), argv=[]).training().tasks
    wanted = [row["said"] for row in load(folder) if row["lang"] != "fr"]
    assert texts(intent, intent.task.train_file) == wanted
    (few,) = Controller(config(folder, "intent", sample_per_label=3), argv=[]).training().tasks
    assert Counter(each.label for each in few.reader.read(few.task.train_file, True)) == {0: 3, 1: 3}
    (some,) = Controller(config(folder, "intent", sample=10, where={"lang": "en"}), argv=[]).training().tasks
    assert len(texts(some, some.task.train_file)) == 10


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"split": {"dev": 0.5, "test": 0.6}}, ["split"]),
        ({"split": {"validation": 0.1}}, ["split", "validation"]),
        ({"sample": 0}, ["sample", "0"]),
        ({"where": {"lang": "it"}}, ["all.jsonl: ", "'it'"]),
    ],
)
def test_a_choice_that_cannot_be_made_is_reported(
    folder: Path, settings: dict[str, Any], values: list[str]
) -> None:
    with raises(palm.PalmError, *values):
        Controller(config(folder, "intent", **settings), argv=[]).training()


@pytest.mark.parametrize(
    ("given", "kind"), [("jsonl", "csv"), ("csv", "jsonl"), ("parquet", "jsonl"), ("tsv", "jsonl")]
)
def test_predictions_are_the_rows_with_further_columns(
    trained: InferenceModel, tmp_path: Path, given: str, kind: str
) -> None:
    pytest.importorskip("pyarrow" if given == "parquet" else "csv")
    rows = [{"said": f"who owns the {'red ' * k}door", "intent": "kept", "n": str(k)} for k in (3, 1, 2)]
    file = write_rows(tmp_path / f"in.{given}", rows)
    saved = trained.predict_file(file, tmp_path / f"out.{kind}")
    expected = trained.predict([row["said"] for row in rows])
    assert len(saved) == 3
    for row, made, record in zip(rows, saved, expected, strict=True):
        assert list(made) == ["said", "intent", "n", "label", "probability"]
        assert {name: made[name] for name in row} == row
        assert int(made["label"]) == record["label"]
        assert float(made["probability"]) == pytest.approx(max(record["probs"]), rel=1e-5)
    assert saved[1] == list(saved)[1]
    assert {path.name for path in tmp_path.glob("[!.]*")} == {file.name, f"out.{kind}"}


def keys_of(texts: list[str], labels: list[str | None], seed: int = 1) -> RowKeys:
    keys = RowKeys(seed)
    for text, label in zip(texts, labels, strict=True):
        keys.add([text], label)
    return keys


def test_every_label_has_its_share_and_a_seed_decides() -> None:
    labels = ["a"] * 700 + ["b"] * 290 + ["c"] * 10
    names = [str(number) for number in range(1000)]
    parts = split([keys_of(names, labels)], {"dev": 0.1, "test": 0.2})
    for part, fraction in (("dev", 0.1), ("test", 0.2)):
        counts = Counter(labels[row] for row in parts[part].tolist())
        assert all(abs(counts[label] - fraction * labels.count(label)) <= 1 for label in "abc")
    other = split([keys_of(names, labels, 2)], {"dev": 0.1, "test": 0.2})
    assert len({*parts["dev"].tolist()} & {*other["dev"].tolist()}) < 40
    chosen = sample(keys_of(names, labels), parts["train"], 100, None)
    assert len(chosen) == 100
    assert Counter(labels[row] for row in chosen.tolist())["a"] in (69, 70, 71)


def test_one_row_of_each_label_stays_in_train() -> None:
    labels = [*"a" * 20, *(f"rare {number}" for number in range(15)), "twice", "twice"]
    names = [str(number) for number in range(len(labels))]
    parts = split([keys_of(names, labels)], {"dev": 0.3, "test": 0.3})
    assert {labels[row] for row in parts["train"].tolist()} == {*labels}
    assert sorted(row for rows in parts.values() for row in rows.tolist()) == list(range(len(labels)))


@pytest.mark.parametrize(("where", "rows"), [("[no, sv]", 3), ("01", 1), ("true", 1)])
def test_values_of_where_are_text_as_they_are_written(tmp_path: Path, where: str, rows: int) -> None:
    folder = tiny.write_files(tmp_path)
    cells = ["no", "no", "sv", "01", "1", "true"]
    lines = "".join(f"{k % 4},w{k},{lang}\n" for k, lang in enumerate(cells))
    (folder / "all.csv").write_text(f"label,text_a,lang\n{lines}", encoding="utf-8")
    task = f"reader: cls\nparadigm: cls\nn_classes: 4\ntrain_file: all.csv\nwhere: {{lang: {where}}}\n"
    (folder / "cls.yaml").write_text(task, encoding="utf-8")
    whole = tiny.config(folder, "cls", batch_size=1)
    del whole["tasks"]
    (folder / "config.yaml").write_text(yaml_text(whole), encoding="utf-8")
    (chosen,) = Controller(folder / "config.yaml", argv=[]).training().tasks
    assert len(chosen.stream.rows) == rows
