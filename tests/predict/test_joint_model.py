"""Several tasks as one model: the same records as each task's own model, with one pass for equal rows."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny
from palm.backbone import BERT
from palm.core.errors import ConfigError, DataError
from palm.paradigm import HEADS
from palm.predict.inference import InferenceModel, JointModel
from palm.reader import READERS

WIDTH = 16
SIZES = tiny.sizes(WIDTH, 2, 2, intermediate_size=32, vocab_size=40, max_position_embeddings=24)
TEXTS = [tiny.COLOURS[k % 4] + " door" + " the old boat is grey" * (k % 3) for k in range(40)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, InferenceModel]:
    """Tasks of five kinds, each with its own copy of one encoder."""
    folder = tiny.write_files(tmp_path_factory.mktemp("joint"))
    tags = {"O": 0, "B-thing": 1, "I-thing": 2}
    kinds: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
        "topic": ("cls", {}, "cls", {"n_classes": 4}),
        "urgent": ("cls", {}, "cls", {"n_classes": 2}),
        "tags": ("seq_label", {"label_map": tags}, "seq_label", {"n_classes": 3}),
        "words": ("mlm", {}, "mlm", {"vocab_size": 40}),
        "answer": ("mrc", {"max_query_len": 6, "doc_stride": 4}, "mrc", {"max_answer_len": 3}),
    }
    made = {}
    for number, (task, (reader, of_reader, head, of_head)) in enumerate(kinds.items()):
        torch.manual_seed(0)
        encoder = BERT(**SIZES)
        torch.manual_seed(number)
        parts = (READERS[reader](folder / "vocab.txt", 16, **of_reader), encoder)
        layer = HEADS[head](hidden_size=WIDTH, **of_head)
        made[task] = InferenceModel(task, *parts, layer, batch_size=8, precision="fp32")
    return made


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every pass of an encoder."""
    rows: list[int] = []
    compute = BERT.forward

    def counted(self: BERT, inputs: Any, wanted: Any = None) -> Any:
        rows.append(len(inputs["token_ids"]))
        return compute(self, inputs, wanted)

    monkeypatch.setattr(BERT, "forward", counted)
    return rows


def test_records_are_those_of_each_model_and_equal_rows_are_encoded_once(
    models: dict[str, InferenceModel], passes: list[int]
) -> None:
    tasks = ["topic", "urgent", "tags"]
    alone = {task: models[task].predict(TEXTS) for task in tasks}
    assert len(passes) == 15
    joint = JointModel(models)
    passes.clear()
    together = joint.predict(TEXTS, tasks)
    assert len(passes) == 5
    assert sum(passes) == 40
    assert together == [{task: alone[task][k] for task in tasks} for k in range(40)]
    assert list(together[0]["topic"]) == list(alone["topic"][0])


def test_readers_that_differ_in_labels_only_tokenize_a_text_once(
    models: dict[str, InferenceModel], tmp_path: Path
) -> None:
    vocabulary = tiny.write_files(tmp_path) / "vocab.txt"  # the same file in another folder
    labels = READERS["cls"](vocabulary, 16, n_classes=3, columns={"label": "mood"})
    longer = READERS["cls"](vocabulary, 18)
    others = {
        task: InferenceModel(task, reader, models["topic"].backbone, models["topic"].head, precision="fp32")
        for task, reader in (("mood", labels), ("longer", longer))
    }
    joint = JointModel({**models, **others})
    tasks = ["topic", "mood", "longer", "tags"]
    rows = joint.encode(TEXTS, tasks)
    for row in rows:
        assert row.chunks["mood"] is row.chunks["topic"]
        assert len({id(row.chunks[task]) for task in tasks}) == 3
    found = joint.predict_rows(rows)
    for task in tasks:
        for record, own in zip([each[task] for each in found], joint.tasks[task].predict(TEXTS), strict=True):
            assert record["index"] == own["index"]
            assert record.get("logits", []) == pytest.approx(own.get("logits", []), abs=1e-6)


def test_tasks_with_other_inputs_have_their_own_pass(
    models: dict[str, InferenceModel], passes: list[int]
) -> None:
    joint = JointModel(models)
    context = "anna has a new red ball . carl has the old blue coat near the wall ."
    found = joint.predict([{"text_a": "a red door", "question": "who owns the ball", "context": context}])
    assert list(found[0]) == list(models)
    # One pass of the three tasks that read `a red door`, one with a masked word, one with windows.
    assert len(passes) == 3
    for task, text in (("words", "a red door"), ("answer", ("who owns the ball", context))):
        assert found[0][task] == models[task].predict([text])[0]


def test_rows_of_several_calls_are_predicted_in_one_batch(
    models: dict[str, InferenceModel], passes: list[int]
) -> None:
    joint = JointModel(models)
    tasks = ["topic", "tags", "words"]
    first = joint.encode(TEXTS[:4], tasks)
    second = joint.encode(TEXTS[4:7], tasks)
    only_topic = joint.encode(TEXTS[7:9], ["topic"])
    found = joint.predict_rows([*first, *only_topic, *second])
    # Three tasks have masked and unmasked rows, one has two texts more.
    assert sorted(passes) == [2, 7, 7]
    expected = [*joint.predict(TEXTS[:4], tasks), *joint.predict(TEXTS[7:9], ["topic"])]
    expected += joint.predict(TEXTS[4:7], tasks)
    for ours, theirs in zip(found, expected, strict=True):
        assert list(ours) == list(theirs)
        assert ours["topic"]["index"] == theirs["topic"]["index"]
        assert ours["topic"]["logits"] == pytest.approx(theirs["topic"]["logits"], abs=1e-6)
        # The words that are masked depend on a text's place in its own call.
        words = [
            [word["word"] for word in each["words"]["words"]] for each in (ours, theirs) if "words" in each
        ]
        assert words[:1] == words[1:]


def test_a_batch_of_one_call_has_the_bits_of_predict(models: dict[str, InferenceModel]) -> None:
    joint = JointModel(models)
    tasks = ["topic", "urgent", "tags", "words"]
    assert joint.predict_rows(joint.encode(TEXTS[:8], tasks)) == joint.predict(TEXTS[:8], tasks)


def test_an_encoded_text_knows_its_tokens_and_whether_it_was_cut(models: dict[str, InferenceModel]) -> None:
    joint = JointModel(models)
    exact, longer = "red " * 14, "red " * 15
    short, full, cut = joint.encode(["a red door", exact, longer], ["topic", "urgent", "tags"])
    assert [short.num_tokens, short.cut] == [5, ()]
    assert [full.num_tokens, full.cut] == [16, ()]
    # Labels of words continue in a second row of one word.
    assert [cut.num_tokens, cut.cut] == [16 + 3, ("topic", "urgent")]
    (asked,) = joint.encode([("red " * 7, "a blue wall")], ["answer"])
    assert asked.cut == ("answer",)


def test_encoders_with_the_same_bits_become_one(models: dict[str, InferenceModel]) -> None:
    joint = JointModel(models)
    assert len({id(model.backbone) for model in joint.tasks.values()}) == 1
    torch.manual_seed(9)
    other = InferenceModel("other", models["topic"].reader, BERT(**SIZES), models["topic"].head)
    both = JointModel({"topic": models["topic"], "other": other})
    assert both.tasks["other"].backbone is not both.tasks["topic"].backbone
    (record,) = both.predict(["a red door"])
    assert record["other"] == other.predict(["a red door"])[0] != record["topic"]


def test_a_wrong_task_or_text_is_named(models: dict[str, InferenceModel]) -> None:
    joint = JointModel(models)
    with pytest.raises(ConfigError, match=r"'topics'.*topic"):
        joint.predict(TEXTS, ["topics"])
    with pytest.raises(DataError, match="task 'answer': text 0"):
        joint.predict(TEXTS)
    with pytest.raises(DataError, match="list of texts"):
        joint.predict("a red door")
    rows = pytest.importorskip("pandas", reason="pandas is not installed").DataFrame(
        {"text_a": ["a red door"]}
    )
    with pytest.raises(DataError, match="list of texts"):
        joint.predict(rows)  # iterating over it yields the names of its columns
    with pytest.raises(ConfigError, match="device"):
        joint.to("cuda" if not torch.cuda.is_available() else "mps")
    assert joint.predict([], ["topic"]) == []


def test_shards_of_several_tasks_share_passes_and_are_the_whole_byte_by_byte(
    models: dict[str, InferenceModel], passes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palm.train.task_model.CHUNK_EXAMPLES", 8)  # 40 texts are 5 chunks
    file = tmp_path / "new.jsonl"
    file.write_text("".join(json.dumps({"text_a": text}) + "\n" for text in TEXTS), encoding="utf-8")
    joint = JointModel({task: models[task] for task in ("topic", "urgent")})

    def predicted(name: str, **how: Any) -> dict[str, bytes]:
        places = {task: (file, tmp_path / name / task) for task in joint.tasks}
        joint.predict_files(places, **how)
        return {
            task: (folder / "predictions.json").read_bytes()
            for task, (_, folder) in places.items()
            if how.get("shard") in (None, "merge/2")
        }

    whole = predicted("whole")
    assert passes == [8] * 5
    passes.clear()
    for shard in ("2/2", "1/2"):
        predicted("parts", shard=shard, resume=True)
    assert passes == [8] * 5
    assert predicted("parts", shard="merge/2") == whole
    left = [each.name for each in (tmp_path / "parts" / "topic").iterdir() if each.suffix != ".lock"]
    assert left == ["predictions.json"]


def test_a_table_has_the_columns_of_all_tasks(models: dict[str, InferenceModel], tmp_path: Path) -> None:
    chosen = {task: models[task] for task in ("topic", "urgent")}
    file = tmp_path / "new.csv"
    file.write_text(
        "id,text_a\n" + "".join(f"{k},{text}\n" for k, text in enumerate(TEXTS)), encoding="utf-8"
    )
    rows = JointModel(chosen).predict_table(file, tmp_path / "answers.csv")
    assert list(rows[0]) == ["id", "text_a"] + [
        f"{task}.{name}" for task in chosen for name in ("label", "probability")
    ]
    for task, model in chosen.items():
        alone = model.predict(TEXTS)
        assert [row[f"{task}.label"] for row in rows] == [str(record["label"]) for record in alone]
        assert [float(row[f"{task}.probability"]) for row in rows] == [max(each["probs"]) for each in alone]
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["answers.csv", "new.csv"]


def test_a_row_that_cannot_be_predicted_has_an_error_of_each_task(
    models: dict[str, InferenceModel], tmp_path: Path
) -> None:
    file = tmp_path / "new.jsonl"
    rows = [{"text_a": "red door"}, {"text_a": None}, {"text_a": "grey boat"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    chosen = JointModel({task: models[task] for task in ("topic", "urgent")})
    table = chosen.predict_table(file, tmp_path / "answers.csv")
    names = [f"{task}.{name}" for task in ("topic", "urgent") for name in ("label", "probability", "error")]
    assert sorted(table[0]) == sorted(["text_a", *names])
    assert [bool(row["topic.error"]) for row in table] == [False, True, False]
    assert list(pickle.loads(pickle.dumps(table))) == list(table)


def test_a_table_keeps_columns_that_only_later_rows_have(
    models: dict[str, InferenceModel], tmp_path: Path
) -> None:
    file = tmp_path / "new.jsonl"
    file.write_text('{"text_a": "red door"}\n{"text_a": "grey boat", "note": "late"}\n', encoding="utf-8")
    chosen = JointModel({task: models[task] for task in ("topic", "urgent")})
    rows = chosen.predict_table(file, tmp_path / "answers.jsonl")
    assert [row.get("note") for row in rows] == [None, "late"]
    assert {name.partition(".")[0] for row in rows for name in row} == {"text_a", "note", "topic", "urgent"}
    assert not any(name.endswith(".note") for row in rows for name in row)
