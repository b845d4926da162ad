"""Trained tasks in transformers and onnxruntime: the real programs agree with `controller.pred`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from torch import Tensor

from helpers.components import encoder_inputs
from helpers.messages import raises
from helpers.subword_files import write_byte_level, write_byte_level_json, write_unigram_json
from helpers.tiny import sizes
from palm.backbone import BERT, ELECTRA, ERNIE, DistilBERT, RoBERTa
from palm.cli import main
from palm.controller.controller import Controller
from palm.core.errors import PalmError
from palm.core.layers import generator
from palm.export import to_hugging_face, to_onnx
from palm.export.onnx_model import graph_of
from palm.export.sources import check_alike
from palm.paradigm import MRC, Classify, Head, MaskLM, Match, MultiLabel, Regression, SequenceLabel
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_model, load_models
from palm.predict.onnx import differences, random_batch
from palm.reader import ClassifyReader, MaskLMReader, SequenceLabelReader
from palm.train.model import outputs_of

DATA = Path(__file__).resolve().parents[2] / "data"
ROWS = 500
PREDICTED = 100
LABELS = json.loads((DATA / "tagging" / "label_map.json").read_text(encoding="utf-8"))
TASKS: dict[str, dict[str, Any]] = {
    "topic": {"reader": "cls", "n_classes": 4, "label_map": {"0": 0, "one": 1, "2": 2, "3": 3}},
    "fits": {"reader": "match"},
    "slots": {"reader": "seq_label", "n_classes": len(LABELS), "label_map": LABELS},
    "answer": {"reader": "mrc", "max_query_len": 24, "doc_stride": 24, "max_answer_len": 8},
    "words": {"reader": "mlm"},
}
FILES = {"topic": "cls4mrqa", "fits": "match4mrqa", "slots": "tagging", "words": "mlm4mrqa"}


def first_rows(name: str, rows: int, folder: Path) -> Path:
    """The first rows of a task's training data, as a file of their own."""
    if name == "answer":
        return DATA / "mrqa" / "dev.json"
    lines = (DATA / FILES[name] / "train.tsv").read_text(encoding="utf-8").splitlines()[: rows + 1]
    path = folder / f"{name}_{rows}.tsv"
    text = "\n".join(lines) + "\n"
    path.write_text(text.replace("\n1\t", "\none\t") if name == "topic" else text, encoding="utf-8")
    return path


def config(folder: Path) -> dict[str, Any]:
    tasks = {}
    for name, settings in TASKS.items():
        train, pred = (str(first_rows(name, rows, folder)) for rows in (ROWS, PREDICTED))
        tasks[name] = {"train_file": train, "pred_file": pred, "paradigm": settings["reader"], **settings}
    return {
        "task_instance": list(TASKS),
        "mix_ratio": [0.5, 1.0, 1.0, 0.2, 0.2],
        "tasks": tasks,
        "backbone": "bert",
        "backbone_config_path": str(DATA / "encoder" / "config.json"),
        "vocab_path": str(DATA / "vocab.txt"),
        "pretrain_path": str(DATA / "encoder"),
        "do_lower_case": True,
        "max_seq_len": 64,
        "batch_size": 16,
        "num_epochs": 1,
        "learning_rate": 1e-3,
        "save_path": str(folder / "out"),
        "precision": "fp32",
        "save_every_n_steps": 50,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of five targets, on the small encoder that ships with the project."""
    folder = tmp_path_factory.mktemp("run")
    Controller(config(folder), argv=[]).train()
    return folder


def saved(run: Path, task: str) -> Path:
    return run / "out" / task / "infer_model"


def predictions(run: Path, task: str) -> list[dict[str, Any]]:
    """What `controller.pred` gives for a task's rows."""
    return list(Controller(config(run), for_train=False, argv=[]).pred(task))


def columns(run: Path, task: str) -> list[list[str]]:
    lines = (run / f"{task}_{PREDICTED}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


def batch_of(model: InferenceModel, texts: list[Any]) -> dict[str, Tensor]:
    examples = list(model.reader.parse(texts))
    rows = model.reader.encode(examples, with_targets=False)
    return model.reader.collate(rows, range(len(rows)), lambda row: generator(0, "test", row))


@torch.no_grad()
def ours(model: InferenceModel, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return outputs_of(model.backbone.eval(), model.head.eval(), batch)


def close(one: Any, other: Any) -> bool:
    """Equal within 1e-4."""
    return bool(np.abs(np.asarray(one) - np.asarray(other)).max() < 1e-4)


# transformers


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed (the extra `minilm`)")


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    """All five tasks as transformers reads them."""
    for task in TASKS:
        assert main(["export", str(saved(run, task)), "--output", str(run / "hf" / task), "--to", "hf"]) == 0
    return run / "hf"


def test_a_text_classification_pipeline_gives_the_labels_of_pred(
    run: Path, exported: Path, transformers: Any
) -> None:
    pipeline = transformers.pipeline("text-classification", model=str(exported / "topic"))
    texts = [text for _, text in columns(run, "topic")]
    given = pipeline(texts, truncation=True, top_k=None, function_to_apply="none", batch_size=50)
    expected = predictions(run, "topic")
    assert len(expected) == PREDICTED
    assert len({record["label"] for record in expected}) > 2
    assert [row[0]["label"] for row in given] == [record["label_name"] for record in expected]
    names = ["0", "one", "2", "3"]
    logits = [[{x["label"]: x["score"] for x in row}[name] for name in names] for row in given]
    assert close(logits, [record["logits"] for record in expected])


def test_a_text_classification_pipeline_gives_the_labels_of_pairs(
    run: Path, exported: Path, transformers: Any
) -> None:
    pipeline = transformers.pipeline("text-classification", model=str(exported / "fits"))
    pairs = [{"text": a, "text_pair": b} for _, a, b in columns(run, "fits")]
    given = pipeline(pairs, truncation=True, top_k=None, batch_size=50)
    expected = predictions(run, "fits")
    assert len(expected) == PREDICTED
    assert {record["label"] for record in expected} == {0, 1}
    assert [row[0]["label"] for row in given] == [str(record["label"]) for record in expected]
    assert close([row[0]["score"] for row in given], [max(record["probs"]) for record in expected])


def test_a_token_classification_pipeline_labels_words_as_pred_does(
    run: Path, exported: Path, transformers: Any
) -> None:
    pipeline = transformers.pipeline("token-classification", model=str(exported / "slots"), ignore_labels=[])
    texts = [text for text, _ in columns(run, "slots")]
    expected = predictions(run, "slots")
    assert len({label for record in expected for label in record["labels"]}) > 3
    for text, pieces, record in zip(texts, pipeline(texts, batch_size=50), expected, strict=True):
        label_at = {piece["start"]: piece["entity"] for piece in pieces}
        starts = [sum(len(word) + 1 for word in text.split(" ")[:k]) for k in range(len(text.split(" ")))]
        assert [label_at[start] for start in starts] == record["labels"]


def test_a_question_answering_model_gives_the_same_logits(
    run: Path, exported: Path, transformers: Any
) -> None:
    model = load_model(saved(run, "answer"))
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(exported / "answer").eval()
    rows = model.reader.encode(list(model.reader.read(DATA / "mrqa" / "dev.json", False))[:40], False)
    batch = model.reader.collate(rows, range(len(rows)), lambda row: generator(0, "test", row))
    assert len(rows) > 40  # contexts longer than a window
    given = in_transformers(theirs, batch)
    expected, real = ours(model, batch), batch["input_mask"]
    for name in ("start_logits", "end_logits"):
        assert close(given[name][real], expected[name][real])
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported / "answer")
    question, context = "Who was mayor?", "Conrad Henman was mayor until 1905."
    assert (
        tokenizer(question, context)["input_ids"]
        == batch_of(model, [(question, context)])["token_ids"][0].tolist()
    )


@torch.no_grad()
def in_transformers(model: Any, batch: dict[str, Tensor]) -> Any:
    has_segments = model.config.model_type not in ("roberta", "distilbert")
    segments = {"token_type_ids": batch["segment_ids"]} if has_segments else {}
    return model(batch["token_ids"], attention_mask=batch["input_mask"].long(), **segments)


def test_a_fill_mask_pipeline_guesses_the_same_word(run: Path, exported: Path, transformers: Any) -> None:
    model = load_model(saved(run, "words"))
    pipeline = transformers.pipeline("fill-mask", model=str(exported / "words"), top_k=1)
    texts = [text for (text,) in columns(run, "words")][:20]
    masked = [text.replace(text.split(" ")[3], "[MASK]", 1) for text in texts]
    batch = batch_of(model, texts)
    hidden = pipeline.tokenizer(masked, padding=True, truncation=True, return_tensors="pt")
    assert hidden["input_ids"].shape[1] == 64
    batch |= encoder_inputs(
        hidden["input_ids"],
        hidden["attention_mask"].bool(),
        segment_ids=hidden["token_type_ids"],
        mask_pos=(hidden["input_ids"].flatten() == model.reader.tokenizer.mask_id).nonzero().squeeze(1),
    )
    expected = ours(model, batch)["logits"]
    given = pipeline(masked, tokenizer_kwargs={"truncation": True})
    assert [row[0]["token"] for row in given] == expected.argmax(-1).tolist()
    logits = in_transformers(pipeline.model, batch).logits.flatten(0, 1)[batch["mask_pos"]]
    assert close(logits, expected)


SIZES = sizes(16, 2, 2, vocab_size=1833, max_position_embeddings=40, initializer_range=0.2)
HEADS: dict[str, Any] = {
    "Classify": lambda: Classify(3, 16, initializer_range=1.0),
    "Match": lambda: Match(2, 16, initializer_range=1.0),
    "MultiLabel": lambda: MultiLabel(3, 16, initializer_range=1.0),
    "pairwise Match": lambda: Match(hidden_size=16, initializer_range=1.0, learning_strategy="pairwise"),
    "Regression": lambda: Regression(16, initializer_range=1.0),
    "SequenceLabel": lambda: SequenceLabel(5, 16, initializer_range=1.0),
    "MRC": lambda: MRC(hidden_size=16, initializer_range=1.0),
    "MaskLM": lambda: MaskLM(16, 1833, initializer_range=0.5),
}
BACKBONES: dict[str, Any] = {
    "BERT": lambda: BERT(**SIZES, intermediate_size=24),
    "ERNIE": lambda: ERNIE(**SIZES, sent_type_vocab_size=4, task_type_vocab_size=5),
    "ERNIE without tasks": lambda: ERNIE(**SIZES, use_task_id=False),
    "RoBERTa": lambda: RoBERTa(**SIZES, pad_token_id=0, layer_norm_eps=1e-12),
    "DistilBERT": lambda: DistilBERT(**SIZES),
    "ELECTRA": lambda: ELECTRA(**SIZES, type_vocab_size=3),
}


def random_model(backbone: str, head: Head, folder: Path, **settings: Any) -> InferenceModel:
    """A model of random weights, saved in `folder`."""
    torch.manual_seed(3)
    kind = MaskLMReader if isinstance(head, MaskLM) else ClassifyReader
    reader = kind(**{"vocab_path": DATA / "vocab.txt", "max_seq_len": 32, "do_lower_case": True, **settings})
    encoder = BACKBONES[backbone]()
    for name, parameter in (*encoder.named_parameters(), *head.named_parameters()):
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model = InferenceModel("task", reader, encoder, head, precision="fp32")
    model.save(folder)
    return model


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("head", HEADS)
def test_every_output_layer_computes_the_same_in_transformers(
    head: str, backbone: str, tmp_path: Path, transformers: Any
) -> None:
    model = random_model(backbone, HEADS[head](), tmp_path / "model", task_id=3)
    to_hugging_face(tmp_path / "model", tmp_path / "hf")
    architecture = json.loads((tmp_path / "hf" / "config.json").read_text("utf-8"))["architectures"][0]
    theirs, info = getattr(transformers, architecture).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    batch = batch_of(model, ["The mayor of Lanstead was born in 1863.", "Yes."])
    batch["word_mask"] = batch["input_mask"]
    expected, given = ours(model, batch), in_transformers(theirs.eval(), batch)
    real = batch["input_mask"]
    if head == "MRC":
        assert close(given.start_logits[real], expected["start_logits"][real])
        assert close(given.end_logits[real], expected["end_logits"][real])
    elif head == "MaskLM":
        assert close(given.logits.flatten(0, 1)[batch["mask_pos"]], expected["logits"])
    elif head == "SequenceLabel":
        assert close(given.logits[real], expected["logits"][real])
    else:
        name = {"pairwise Match": "probs", "Regression": "values"}.get(head, "logits")
        scores = given.logits.sigmoid() if head == "pairwise Match" else given.logits
        assert close(scores.detach().reshape(expected[name].shape), expected[name])


@pytest.mark.parametrize(
    ("head", "label", "score"), [("Regression", "value", "value"), ("pairwise Match", "score", "probs")]
)
def test_a_single_number_has_a_name_and_its_own_scale(
    head: str, label: str, score: str, tmp_path: Path, transformers: Any
) -> None:
    model = random_model("BERT", HEADS[head](), tmp_path / "model")
    to_hugging_face(tmp_path / "model", tmp_path / "hf")
    given = transformers.pipeline("text-classification", model=str(tmp_path / "hf"))(["Yes.", "In 1863 ?"])
    expected = model.predict(["Yes.", "In 1863 ?"])
    assert [row["label"] for row in given] == [label, label]
    assert close([row["score"] for row in given], [record[score] for record in expected])


@pytest.mark.parametrize("for_cn", [False, True])
def test_the_exported_tokenizer_gives_the_readers_ids(
    for_cn: bool, tmp_path: Path, transformers: Any
) -> None:
    model = random_model("BERT", Classify(3, 16), tmp_path / "model", for_cn=for_cn)
    to_hugging_face(tmp_path / "model", tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [
        "In [SEP] or [MASK] 1863,",
        "Ça naïve ΣΟΦΟΣ",
        "北京 是 \u3000city\x00",
        "the " * 60,
        "a\tb\u200b c",
    ]
    pairs = [{"text_a": a, "text_b": b} for a, b in zip(texts, texts[::-1], strict=True)]
    for given, values in (
        (tokenizer(texts, truncation=True), texts),
        (tokenizer(texts, texts[::-1], truncation=True), pairs),
    ):
        batch = batch_of(model, values)
        for row, ids in enumerate(given["input_ids"]):
            assert ids == batch["token_ids"][row][batch["input_mask"][row]].tolist()
            assert (
                given["token_type_ids"][row] == batch["segment_ids"][row][batch["input_mask"][row]].tolist()
            )
    assert tokenizer.model_max_length == 32


@pytest.mark.parametrize("write", [write_byte_level, write_byte_level_json, write_unigram_json])
def test_vocabularies_of_other_kinds_are_exported(write: Any, tmp_path: Path, transformers: Any) -> None:
    (tmp_path / "vocabulary").mkdir()
    settings = {"vocab_path": write(tmp_path / "vocabulary"), "do_lower_case": False, "max_seq_len": 12}
    model = random_model("RoBERTa", Classify(2, 16), tmp_path / "model", **settings)
    to_hugging_face(tmp_path / "model", tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    first, second = (
        ["who owns the door?", "a"],
        ["Anna, 北京 naïve", "the old red boat is near the grey door"],
    )
    pairs = [{"text_a": a, "text_b": b} for a, b in zip(first, second, strict=True)]
    for values, seconds in ((first, None), (pairs, second)):
        given, batch = tokenizer(first, seconds, truncation=True), batch_of(model, values)
        for row, real in enumerate(batch["input_mask"]):
            assert given["input_ids"][row] == batch["token_ids"][row][real].tolist()
    assert not (tmp_path / "hf" / "vocab.txt").exists()


def test_words_of_a_byte_level_vocabulary_are_cut_alike(tmp_path: Path, transformers: Any) -> None:
    vocab = write_byte_level(tmp_path / "vocabulary")
    reader = SequenceLabelReader(vocab, 32, {"O": 0, "B": 1})
    InferenceModel("task", reader, BACKBONES["RoBERTa"](), SequenceLabel(2, 16)).save(tmp_path / "model")
    to_hugging_face(tmp_path / "model", tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "boat near the old red door"
    rows = reader.encode(list(reader.parse([text])), with_targets=False)
    given = tokenizer(text, return_offsets_mapping=True)
    assert given["input_ids"] == rows["token_ids"][0].tolist()
    starts = [given["offset_mapping"][column][0] for column in rows["word_starts"][0]]
    assert starts == [0, 5, 10, 14, 18, 22]


class OddHead(Classify):
    """A head of a user's own."""


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (SequenceLabel(5, 16, use_crf=True), "model.*CRF"),
        (MaskLM(16, 1833, "relu"), "hidden_act 'relu', transformers 'gelu'"),
        (OddHead(3, 16), f"'{__name__}.OddHead'; .* cls, match"),
    ],
    ids=["CRF", "activation", "own class"],
)
def test_what_transformers_cannot_compute_is_refused(head: Head, message: str, tmp_path: Path) -> None:
    random_model("BERT", head, tmp_path / "model")
    with pytest.raises(PalmError, match=message):
        to_hugging_face(tmp_path / "model", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_several_tasks_are_one_model_each(run: Path) -> None:
    assert main(["export", str(run / "out" / "step_50"), "--output", str(run / "each"), "--to", "hf"]) == 0
    assert len({file.parent for file in (run / "each").rglob("model.safetensors")}) > 1


# onnxruntime


@pytest.fixture(scope="module")
def onnxruntime() -> Any:
    pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    return pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")


class OnnxModel:
    """What a user of an exported directory writes: a tokenizer and a session, without palm and torch."""

    def __init__(self, folder: Path, onnxruntime: Any) -> None:
        self.description = json.loads((folder / "palm_export.json").read_text(encoding="utf-8"))
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.enable_truncation(64)
        self.tokenizer.enable_padding()
        self.session = onnxruntime.InferenceSession(folder / "model.onnx")

    def inputs(self, texts: list[Any]) -> dict[str, Any]:
        rows = self.tokenizer.encode_batch(texts)
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        return {name: np.array([getattr(row, field) for row in rows]) for name, field in fields.items()}

    def __call__(self, output: str, inputs: dict[str, Any]) -> Any:
        empty = {"mask_pos": np.empty(0, np.int64)} if "mask_pos" in self.description["inputs"] else {}
        return self.session.run([output], {**empty, **inputs})[0]


@pytest.fixture(scope="module")
def pairs_graph(run: Path, onnxruntime: Any) -> OnnxModel:
    assert (
        main(["export", str(saved(run, "fits")), "--output", str(run / "onnx" / "fits"), "--to", "onnx"]) == 0
    )
    return OnnxModel(run / "onnx" / "fits", onnxruntime)


@pytest.fixture(scope="module")
def joint_graph(run: Path, onnxruntime: Any) -> OnnxModel:
    assert main(["export", str(run / "out"), "--output", str(run / "onnx" / "all"), "--to", "onnx"]) == 0
    return OnnxModel(run / "onnx" / "all", onnxruntime)


def test_a_session_gives_the_labels_of_pred(run: Path, pairs_graph: OnnxModel) -> None:
    expected = predictions(run, "fits")
    pairs = [(a, b) for _, a, b in columns(run, "fits")]
    parts = [pairs[start : start + 40] for start in range(0, PREDICTED, 40)]
    logits = np.concatenate([pairs_graph("logits", pairs_graph.inputs(part)) for part in parts])
    assert logits.argmax(-1).tolist() == [record["label"] for record in expected]
    assert close(logits, [record["logits"] for record in expected])


def test_one_graph_has_the_heads_of_all_tasks(run: Path, joint_graph: OnnxModel) -> None:
    models = load_models(run / "out", device="cpu", precision="fp32").tasks
    assert list(models) == list(TASKS)
    texts = [text for _, text in columns(run, "topic")]
    expected = models["topic"].predict(texts)
    logits = joint_graph("topic.logits", joint_graph.inputs(texts))
    assert logits.argmax(-1).tolist() == [record["label"] for record in expected]
    assert close(logits, [record["logits"] for record in expected])
    for task, values, outputs in (
        ("fits", [("Who was mayor?", "Henman was mayor.")], ["logits", "probs"]),
        ("slots", ["two tickets from Torville to East Quinland"], ["logits"]),
        ("answer", [("Who was mayor?", "Conrad Henman was mayor.")], ["start_logits", "end_logits"]),
        ("words", ["The mayor stepped down in 1905."], ["logits"]),
    ):
        batch = batch_of(models[task], values)
        theirs = {"input_ids": "token_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
        feed = {name: batch[own].long().numpy() for name, own in theirs.items()}
        feed |= {"mask_pos": batch["mask_pos"].numpy()} if task == "words" else {}
        for output in outputs:
            assert close(joint_graph(f"{task}.{output}", feed), ours(models[task], batch)[output])


def test_tasks_that_read_texts_otherwise_do_not_share_a_graph() -> None:
    encoder = BACKBONES["ERNIE"]()
    one, two, three = (
        InferenceModel(task, ClassifyReader(DATA / "vocab.txt", 32, **settings), encoder, Classify(2, 16))
        for task, settings in (("one", {"do_lower_case": True}), ("two", {}), ("three", {"task_id": 1}))
    )
    with pytest.raises(PalmError, match=r"'one' and 'three' .*vocab_path"):
        check_alike(one, three)
    with pytest.raises(PalmError, match=r"'three' and 'two' .*task_id.* 1 and 0"):
        check_alike(three, two)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a CRF, of random weights."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("tagger")
    head = SequenceLabel(26, 16, initializer_range=0.5, use_crf=True)
    assert head.crf is not None
    torch.nn.init.normal_(head.crf.weight, std=2.0)
    reader = SequenceLabelReader(DATA / "vocab.txt", 32, LABELS, do_lower_case=True)
    encoder = BERT(**SIZES | {"num_hidden_layers": 1}, intermediate_size=24)
    InferenceModel("tagger", reader, encoder, head).save(folder)
    return folder


def test_a_crf_is_beside_the_graph_and_viterbi_gives_the_labels_of_predict(
    tagger: Path, tmp_path: Path, onnxruntime: Any
) -> None:
    assert to_onnx(tagger, tmp_path / "onnx")["tagger"] < 1e-4
    graph = OnnxModel(tmp_path / "onnx", onnxruntime)
    crf = {name: np.array(part) for name, part in graph.description["tasks"]["tagger"]["crf"].items()}
    text = "two tickets from torville to east quinland please"
    inputs = graph.inputs([text])
    words = load_model(tagger).reader.tokenizer.encode(text.split(" "))
    starts = np.cumsum([1, *map(len, words[:-1])])
    emissions = graph("logits", inputs)[0][starts]  # [words, n_classes]
    score, came_from = crf["first"] + emissions[0], []
    for emission in emissions[1:]:
        ways = score[:, None] + crf["following"]
        came_from.append(ways.argmax(0))
        score = ways.max(0) + emission
    labels = [int((score + crf["last"]).argmax())]
    for before in reversed(came_from):
        labels.append(int(before[labels[-1]]))
    names = graph.description["tasks"]["tagger"]["labels"]
    assert [names[label] for label in labels[::-1]] == load_model(tagger).predict([text])[0]["labels"]
    assert emissions.argmax(1).tolist() != labels[::-1]


def test_a_graph_that_computes_something_else_is_refused(run: Path, pairs_graph: OnnxModel) -> None:
    model = load_model(saved(run, "fits"))
    graph = graph_of([model])
    with torch.no_grad():
        model.head.get_parameter("out.bias").add_(0.25)
    with raises(PalmError, "'fits'", "2.5e-01", "32 ", "1.0e-04"):
        differences(graph, pairs_graph.session, {"fits": random_batch(model.reader, 32)}, 1e-4)
