"""`palm init`: a project that is checked, trained, evaluated and predicted as it stands."""

from __future__ import annotations

import csv
import html
import json
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from tokenizers import BertWordPieceTokenizer

import palm
from helpers.messages import raises
from palm.check import check
from palm.cli import main
from palm.cli.starter.project import KINDS, TEMPLATES, tasks_of, write_project
from palm.cli.starter.start import word_vectors
from palm.cli.starter.table_tasks import tasks_in
from palm.core.errors import ConfigError, StorageError
from palm.report.analysis import Analysis, analyses_of
from palm.report.page import page
from palm.report.run import read_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tasks", [["mlm"], list(KINDS)], ids=",".join)
def test_a_project_is_in_order_and_trains(tasks: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "project"
    assert main(["init", str(folder), "--tasks", ",".join(tasks)]) == 0
    found = check(folder / "config.yaml", measure=False)
    assert [str(problem) for problem in found.problems] == []
    assert found.plan is not None
    result = palm.Controller(folder / "config.yaml", argv=["--num_epochs", "0.3"]).train()
    targets = [task for task in tasks if task != "mlm"] or ["mlm"]
    assert [task for task in tasks if f"{task} (best)" in result.paths] == targets
    assert main(["predict", str(folder / "config.yaml"), "--task", targets[-1]]) == 0
    run = read_run(folder / "output")
    analyses = analyses_of(run)
    shown = html.unescape(page(run, analyses))
    for target in targets:
        found = analyses[target]
        assert isinstance(found, Analysis), found
        assert found.data["examples"] > 0
        assert len(found.hardest) > 0
        assert found.hardest[0].place in shown


def floors() -> dict[str, tuple[str, float]]:
    """Kind -> its metric, and the score that every project is promised."""
    found: dict[str, tuple[str, float]] = runpy.run_path(str(ROOT / "benchmarks" / "starter.py"))["FLOORS"]
    return found


def test_what_a_project_trains_can_be_learnt(tmp_path: Path) -> None:
    write_project(tmp_path / "project", {"intent": "cls", "slots": "seq_label"})
    result = palm.Controller(tmp_path / "project" / "config.yaml", argv=[]).train()
    promised = floors()
    for name, kind in (("intent", "cls"), ("slots", "seq_label")):
        metric, floor = promised[kind]
        assert result.best[name].scores[metric] >= floor
    assert result.best["intent"].scores["accuracy"] >= 15 / 16  # one of 16 dev rows turns with the rounding


def test_the_files_of_a_project_are_these_and_say_what_they_are(tmp_path: Path) -> None:
    written = write_project(tmp_path / "new" / "project", {"intent": "cls", "words": "mlm"})
    assert written == [
        *("README.md", "config.yaml", "data/intent/dev.tsv", "data/intent/label_map.json"),
        *("data/intent/train.tsv", "data/words/dev.tsv", "data/words/train.tsv"),
        *("encoder/config.json", "encoder/vocab.txt", "intent.yaml", "run.sh", "words.yaml"),
    ]
    project = tmp_path / "new" / "project"
    text = (project / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["target_tag"] == "1, 0"
    assert "{" not in text
    assert "{" not in (project / "README.md").read_text(encoding="utf-8")
    assert "${BASH_SOURCE[0]}" in (project / "run.sh").read_text(encoding="utf-8")
    assert yaml.safe_load((project / "intent.yaml").read_text(encoding="utf-8"))["reader"] == "cls"
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("pretrain", "effort", "written"),
    [("a/b", None, "normal"), ("a/b", "best", "best"), (None, "quick", "quick")],
)
def test_effort_replaces_rate_and_length(
    tmp_path: Path, pretrain: str | None, effort: str | None, written: str
) -> None:
    write_project(tmp_path / "project", {"cls": "cls"}, pretrain, effort=effort)
    config = yaml.safe_load((tmp_path / "project" / "config.yaml").read_text(encoding="utf-8"))
    assert config["effort"] == written
    assert not {"learning_rate", "num_epochs", "batch_size"} & config.keys()


def test_a_folder_with_anything_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with raises(StorageError, f"{tmp_path} ", "notes.txt"):
        write_project(tmp_path, {"cls": "cls"})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with raises(StorageError, str(tmp_path / "notes.txt")):
        write_project(tmp_path / "notes.txt", {"cls": "cls"})
    (tmp_path / "empty").mkdir()
    assert "config.yaml" in write_project(tmp_path / "empty", {"cls": "cls"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "notes.txt"]


@pytest.mark.parametrize(
    ("tasks", "named"),
    [
        ("", [", ".join(KINDS)]),
        ("seq_lable", ["'seq_lable'", "'seq_label'"]),
        ("cls,cls", ["'cls'", "cls2="]),
        ("a/b=cls", ["'a/b'"]),
        ("stages=cls", ["'stages'", "save_path"]),
        ("config=cls", ["'config'"]),
    ],
)
def test_tasks_that_cannot_be_are_reported(tasks: str, named: list[str], tmp_path: Path) -> None:
    with raises(ConfigError, "--tasks: ", *named):
        write_project(tmp_path / "project", tasks_of(tasks))
    assert list(tmp_path.iterdir()) == []


def test_the_rows_are_those_of_their_script(tmp_path: Path) -> None:
    program = ROOT / "scripts" / "make_starter_data.py"
    runpy.run_path(str(program))["main"](tmp_path)
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    data = TEMPLATES / "data"
    assert files == {path.relative_to(data): path.read_bytes() for path in data.rglob("*") if path.is_file()}


@pytest.mark.parametrize("start", [None, "3", 0.5])
def test_spans_without_whole_numbers_are_no_labels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], start: object
) -> None:
    spans = [{"start": start, "end": 4, "label": "who"}, {"start": 5, "end": 9, "label": "what"}]
    row = {"text": "anna owns a boat", "spans": spans}
    table = tmp_path / "rows.jsonl"
    table.write_text(f"{json.dumps(row)}\n" * 20, encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 2
    assert str(table) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "name", "cells"),
    [
        ("multiple_choice", "choices", {"choices": ["the red boat", "an old sun"], "label": 1}),
        ("ranking", "candidates", {"candidates": ["the red boat", "an old sun"], "label": [2, 0]}),
        ("embedding", "pairs", {}),
        ("span", "spans", {"spans": [{"start": 0, "end": 3, "label": "who"}]}),
        (
            "relation",
            "relations",
            {
                "spans": [{"start": 0, "end": 3, "label": "who"}, {"start": 4, "end": 8, "label": "does"}],
                "relations": [{"head": 0, "tail": 1, "label": "agent"}],
            },
        ),
    ],
)
def test_a_table_of_several_texts_a_row_becomes_a_task(
    tmp_path: Path, kind: str, name: str, cells: dict[str, object]
) -> None:
    rows = [{"question": f"who owns boat {k}", **(cells or {"answer": f"anna owns {k}"})} for k in range(30)]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    task = yaml.safe_load((tmp_path / "project" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert (task["reader"], task["columns"]["text_a"]) == (kind, "question")
    assert "batch_size" not in task  # 24 training rows do not fill a batch of 32
    assert task.get("nested_spans", True) is (kind != "span")  # none of these share a word
    config = str(tmp_path / "project" / "config.yaml")
    found = check(config, measure=False)
    assert [str(problem) for problem in found.problems if problem.severity == "error"] == []
    assert main(["train", config, "--max_steps", "2"]) == 0
    assert main(["predict", config]) == 0


def test_many_pairs_are_trained_in_large_batches_and_in_twice_the_updates(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    rows = "".join(f"who owns boat {k},anna owns {k}\n" for k in range(100))
    table.write_text(f"question,answer\n{rows}", encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    files = ((tmp_path / "project" / f"{name}.yaml").read_text("utf-8") for name in ("config", "pairs"))
    config, task = map(yaml.safe_load, files)
    assert (config["effort"], task["batch_size"]) == ("best", 32)


def test_the_folder_of_a_run_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    (tmp_path / "history.jsonl").write_text('{"task": "a", "label": "b"}\n' * 3, encoding="utf-8")
    with raises(ConfigError, f"{tmp_path} is the folder of a run"):
        tasks_in(tmp_path)


@pytest.mark.parametrize("content", ["", "text\n", "text;label\na red boat;0\na blue boat;1\n"])
def test_a_table_without_columns_of_texts_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(content, encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 2
    assert str(table) in capfd.readouterr().err
    assert not (tmp_path / "project").exists()


@pytest.mark.parametrize("is_squad", [False, True])
def test_questions_with_answers_become_a_task(tmp_path: Path, is_squad: bool) -> None:
    answer = {"text": "anna", "answer_start": 0}
    rows = [
        {"id": f"q{k}", "question": f"who owns boat {k}", "context": f"anna owns {k}", "answers": [answer]}
        for k in range(30)
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    if is_squad:
        rows[0]["answers"] = []  # as in SQuAD 2.0
        text = json.dumps(
            {"data": [{"paragraphs": [{"context": row["context"], "qas": [row]}]} for row in rows]}
        )
    table = tmp_path / ("rows.json" if is_squad else "rows.jsonl")
    table.write_text(text, encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    task = yaml.safe_load((tmp_path / "project" / "answers.yaml").read_text(encoding="utf-8"))
    assert (task["reader"], task.get("with_negative", False)) == ("mrc", is_squad)
    config = str(tmp_path / "project" / "config.yaml")
    assert main(["train", config, "--max_steps", "2"]) == 0
    assert main(["predict", config]) == 0


def test_texts_alone_become_masked_words(tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("text\n" + "".join(f"the old boat {k} at sea\n" for k in range(30)), encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    task = yaml.safe_load((tmp_path / "project" / "words.yaml").read_text(encoding="utf-8"))
    assert (task["reader"], task["columns"]) == ("mlm", {"text_a": "text"})


def test_named_columns_become_tasks_of_the_named_kinds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "rows.csv"
    rows = [f"{k},the old boat {k} at sea,{k % 4},{'ab'[k % 2]},{k % 2},x{k}\n" for k in range(30)]
    table.write_text("id,text,visits,kind,late,code\n" + "".join(rows), encoding="utf-8")
    assert main(["init", str(tmp_path / "all"), "--from", str(table)]) == 0
    given = ["--from", str(table), "--tasks", "visits=count,kind"]
    assert main(["init", str(tmp_path / "two"), *given]) == 0
    paradigms = {
        folder: {
            path.stem: yaml.safe_load(path.read_text("utf-8"))["paradigm"]
            for path in (tmp_path / folder).glob("*.yaml")
            if path.stem != "config"
        }
        for folder in ("all", "two")
    }
    assert paradigms["all"] == {"visits": "cls", "kind": "cls", "late": "cls"}
    assert paradigms["two"] == {"visits": "count", "kind": "cls"}
    assert main(["train", str(tmp_path / "two" / "config.yaml"), "--max_steps", "2"]) == 0
    for named, words in (("visit=count", ["'visit'", "visits"]), ("visits=counts", ["'counts'", "count"])):
        capfd.readouterr()
        assert main(["init", str(tmp_path / "no"), "--from", str(table), "--tasks", named]) == 2
        said = capfd.readouterr().err
        assert [word for word in words if word not in said] == []
    assert not (tmp_path / "no").exists()


def test_weights_that_cannot_be_had_leave_no_project(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["--tasks", "cls", "--pretrain", str(tmp_path / "nobody")]
    assert main(["init", str(tmp_path / "project"), *given]) == 2
    assert str(tmp_path / "nobody") in capfd.readouterr().err
    assert not (tmp_path / "project").exists()


def test_a_csv_of_tags_and_stars_becomes_tasks_whose_script_finishes(tmp_path: Path) -> None:
    tags = [["door"], ["door", "roof"], [], ["roof"]]
    table = tmp_path / "tickets.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        rows = ([f"the {k} is broken", json.dumps(tags[k % 4]), k % 5 + 1, 50 + k / 4] for k in range(80))
        csv.writer(file).writerows([["text", "tags", "stars", "price"], *rows])
    project = tmp_path / "project"
    assert main(["init", str(project), "--from", str(table)]) == 0
    found = {
        name: yaml.safe_load((project / f"{name}.yaml").read_text()) for name in ("tags", "stars", "price")
    }
    expected = {"tags": "multi_label", "stars": "ordinal", "price": "regression"}
    assert {name: task["paradigm"] for name, task in found.items()} == expected
    assert found["tags"]["label_map"] == {"door": 0, "roof": 1}
    assert found["stars"]["label_map"] == {"1": 0, "2": 1, "3": 2, "4": 3, "5": 4}
    assert "`data/`" not in (project / "README.md").read_text(encoding="utf-8")
    text = (project / "config.yaml").read_text(encoding="utf-8")
    assert "overwrite" not in text  # it would replace models
    assert (yaml.safe_load(text)["tasks_per_step"], yaml.safe_load(text)["effort"]) == ("all", "best")
    config = str(project / "config.yaml")
    assert [each.message for each in check(config, measure=False).problems if each.severity == "error"] == []
    script = (project / "run.sh").read_text(encoding="utf-8")
    commands = [
        line.replace('"$@"', "").split()[1:] for line in script.splitlines() if line.startswith("palm ")
    ]
    for words in commands[1:]:
        assert main([*words[:1], config, *words[2:], "--max_steps", "4"]) == 0


def test_labels_that_are_numbers_are_in_their_order_and_the_file_says_what_else_they_may_be(
    tmp_path: Path,
) -> None:
    table = tmp_path / "recipes.csv"
    rows = [f"soup with {k} beans,{(5, 10, 60)[k % 3]},{'ab'[k % 2]}\n" for k in range(30)]
    table.write_text("recipe,minutes,kind\n" + "".join(rows), encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    minutes, kind = ((tmp_path / f"project/{name}.yaml").read_text("utf-8") for name in ("minutes", "kind"))
    assert yaml.safe_load(minutes)["label_map"] == {"5": 0, "10": 1, "60": 2}
    assert ("regression" in minutes, "regression" in kind) == (True, False)


def test_several_labels_in_a_cell_are_a_set_and_labels_that_look_the_same_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "tickets.csv"
    cells = ["door;late", "door; new", "new", "late;new"], ["bug", "bug ", "Bug"]
    rows = [f"the house {k} at sea,{cells[0][k % 4]},{cells[1][k % 3]}\n" for k in range(30)]
    table.write_text("text,tags,kind\n" + "".join(rows), encoding="utf-8")
    with caplog.at_level("WARNING"):
        assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    assert [record.args for record in caplog.records] == [("kind", "Bug", "bug"), ("kind", "Bug", "bug ")]
    tags = yaml.safe_load((tmp_path / "project" / "tags.yaml").read_text("utf-8"))
    assert (tags["paradigm"], tags["label_separator"]) == ("multi_label", ";")
    assert tags["label_map"] == {"door": 0, "late": 1, "new": 2}
    argv = ["--task_instance", "tags", "--target_tag", "1", "--mix_ratio", "1.0", "--max_steps", "2"]
    assert main(["train", str(tmp_path / "project" / "config.yaml"), *argv]) == 0


def test_a_table_in_chinese_becomes_tasks_whose_texts_the_encoder_knows(tmp_path: Path) -> None:
    table = tmp_path / "评论.csv"
    texts = [f"早餐有{a}和{b}，我们很满意。" for a in "面饭粥饼蛋" for b in "茶水汤奶酒"]
    rows = [f"{text},{'餐饮' if index % 2 else '服务'}" for index, text in enumerate(texts)]
    table.write_text("\n".join(["评论,主题", *rows]) + "\n", encoding="utf-8")
    assert main(["init", str(tmp_path / "project"), "--from", str(table)]) == 0
    assert 'label_map: {"服务": 0, "餐饮": 1}' in (tmp_path / "project" / "主题.yaml").read_text("utf-8")
    words = (tmp_path / "project" / "encoder" / "vocab.txt").read_text("utf-8").split()
    library = BertWordPieceTokenizer({word: number for number, word in enumerate(words)})
    assert "[UNK]" not in library.encode(texts[0]).tokens
    assert library.encode("早餐").tokens == ["[CLS]", "早", "餐", "[SEP]"]


def test_words_of_the_same_texts_begin_with_similar_vectors() -> None:
    rng = random.Random(1)
    groups = [range(6, 16), range(16, 26)]
    texts = [[5, 5, *rng.sample(group, 3)] for group in groups for _ in range(100)]
    found = word_vectors(texts, first=5, count=25, dims=8)
    assert np.linalg.norm(found, axis=1) == pytest.approx([*[1.0] * 21, *[0.0] * 4], abs=1e-5)
    cosines = found[1:21] @ found[1:21].T
    assert min(cosines[:10, :10].mean(), cosines[10:, 10:].mean()) > cosines[:10, 10:].max() + 0.3


@pytest.mark.parametrize("kind", ["match", "cls"])
def test_tasks_on_what_two_texts_share_begin_by_subtracting_equal_words(tmp_path: Path, kind: str) -> None:
    table = tmp_path / "pairs.csv"
    rows = [f"{('yes', 'no')[k % 2]},the red door {k} of house,a blue boat {k} at sea" for k in range(40)]
    table.write_text("\n".join(["label,text_a,text_b", *rows]) + "\n", encoding="utf-8")
    project = tmp_path / "project"
    assert main(["init", str(project), "--from", str(table), "--tasks", f"label={kind}"]) == 0
    weights = load_file(project / "encoder" / "model.safetensors")
    value, output = (
        weights[f"encoder.layer.0.attention.{each}.weight"] for each in ("self.value", "output.dense")
    )
    compares = kind == "match"
    assert np.allclose(output, -value.T) == compares
    words = weights["embeddings.word_embeddings.weight"][:, 0]
    vocabulary = (project / "encoder" / "vocab.txt").read_text("utf-8").splitlines()
    length = 0.02 * 64**0.5
    # Of 80 texts, two have a number: (log 40 / log 80) squared; half have a word: (log 2 / log 80) squared.
    for word, count in {"39": 2, "red": 40}.items():
        expected = length * (np.log(80 / count) / np.log(80)) ** 2
        assert np.isclose(words[vocabulary.index(word)], expected, atol=1e-5) == compares
    config = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    assert config.get("freeze") == ("embeddings" if compares else None)


def test_the_encoder_of_a_table_of_pairs_attends_to_the_same_word_of_the_other_text(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    rows = [f"same,the red door {k} of house,a blue boat {k} at sea" for k in range(40)]
    rows[1::2] = [row.replace("same", "other") for row in rows[1::2]]
    table.write_text("\n".join(["label,text_a,text_b", *rows]) + "\n", encoding="utf-8")
    project = tmp_path / "project"
    assert main(["init", str(project), "--from", str(table)]) == 0
    weights = load_file(project / "encoder" / "model.safetensors")
    word, segments = (weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    place = "encoder.layer.0.attention.self"
    query, key = (weights[f"{place}.{name}.weight"] for name in ("query", "key"))

    def score(one: int, of: int, other: int, to: int) -> float:
        return float((query @ (word[one] + segments[of])) @ (key @ (word[other] + segments[to])))

    vocabulary = (project / "encoder" / "vocab.txt").read_text("utf-8").splitlines()
    red, blue = vocabulary.index("red"), vocabulary.index("blue")
    assert score(red, 0, red, 1) > score(red, 0, blue, 1)
    assert score(red, 0, red, 1) > score(red, 0, red, 0)
    config = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    assert (config["effort"], config["pretrain_path"]) == ("best", "encoder")
    assert "tasks_per_step" not in config  # one task
