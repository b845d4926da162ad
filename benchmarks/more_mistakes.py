"""Make 414 other mistakes of newcomers: directories of weights, settings, tables, commands, Python, servers.

    python benchmarks/more_mistakes.py [KIND ...] [--show]

As `mistakes.py`, which has the project, the outcomes and other mistakes.
"""

# ruff: noqa: E501 - a mistake a line

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mistakes import (
    GOOD,
    KIND,
    OLD,
    OWNS,
    QA,
    _csv,
    _said,
    _texts,
    command,
    edit,
    main,
    program,
    project,
    request,
    run,
    setting,
    table,
    written,
)

Do = Callable[[Path], object]
Entry = tuple[str, tuple[str, ...], Do]


def weights(change: Callable[[Path], object], path: str = "new", *more: str) -> Do:
    """Start from a copy of the project's small encoder, in the layout of transformers, that was changed."""

    def do(folder: Path) -> None:
        new = folder / "new"
        shutil.copytree(folder / "encoder", new)
        change(new)
        run("train", "config.yaml", "--pretrain", path, "--overwrite", "True", *more)

    return do


def config(**changes: Any) -> Callable[[Path], None]:
    """Set values of config.json; None removes one."""

    def change(folder: Path) -> None:
        known = json.loads((folder / "config.json").read_text("utf-8")) | changes
        kept = {name: value for name, value in known.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")

    return change


def only(**files: str | bytes) -> Callable[[Path], None]:
    """Leave nothing but these files; `__` is a dot, and `___` a slash."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        put(**files)(folder)

    return change


def put(**files: str | bytes) -> Callable[[Path], None]:
    """Write these files into the folder; in their names, `__` is a dot, and `___` a slash."""

    def change(folder: Path) -> None:
        for name, content in files.items():
            path = folder / name.replace("___", "/").replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def tensors(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """Change the tensors of the file of weights."""

    def do(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file)

    return do


def moved(target: str) -> Callable[[Path], None]:
    """Move the files into a folder below."""

    def change(folder: Path) -> None:
        shutil.move(folder, folder.parent / "kept")
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder.parent / "kept", folder / target)

    return change


def pickled(what: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Save something with torch as pytorch_model.bin, without the file of safetensors."""

    def change(folder: Path) -> None:
        import torch

        torch.save(what(folder), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()

    return change


def _module(_: Path) -> Any:
    import torch

    return torch.nn.Linear(2, 2)


def _cut(name: str, size: float) -> Callable[[Path], None]:
    """Cut a file to a share of its size."""

    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(size * len(data))])

    return change


def _as_type(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(found: dict[str, Any]) -> dict[str, Any]:
        import torch

        return {name: (value * 9).to(getattr(torch, kind)) for name, value in found.items()}

    return change


def _nan(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value * float("nan") for name, value in found.items()}


def _cached(folder: Path) -> None:
    """A cache of the Hub whose blobs were deleted."""
    names = [path.name for path in folder.iterdir()]
    shutil.rmtree(folder)
    snapshot = folder / "models--me--tiny/snapshots/abc"
    snapshot.mkdir(parents=True)
    for name in names:
        (snapshot / name).symlink_to(f"../../blobs/{name}")


LORA = json.dumps(
    {"peft_type": "LORA", "base_model_name_or_path": "me/base", "r": 8, "target_modules": ["query"]}
)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n"
PAGE = "<!DOCTYPE html>\n<html>Sign in</html>\n"

DIRECTORIES: list[Entry] = [
    ("adapters of peft as an encoder", ("adapter",), weights(only(adapter_config__json=LORA, adapter_model__safetensors=b""))),
    ("a folder of GGUF", ("gguf",), weights(only(model__gguf=b"GGUF" + bytes(99)))),
    ("a file of GGUF", ("gguf",), weights(only(model__gguf=b"GGUF" + bytes(99)), "new/model.gguf")),
    ("weights of GPTQ", ("quantization_config",), weights(config(quantization_config={"quant_method": "gptq", "bits": 4}))),
    ("whole numbers as weights", ("int8", "model.safetensors|new"), weights(tensors(_as_type("int8")))),
    ("weights of 8-bit floats", ("float8|8", "model.safetensors|new"), weights(tensors(_as_type("float8_e4m3fn")))),
    ("a file of weights that is cut off", ("model.safetensors",), weights(_cut("model.safetensors", 0.5))),
    ("an empty file of weights", ("model.safetensors",), weights(_cut("model.safetensors", 0))),
    ("a description that is cut off", ("config.json",), weights(_cut("config.json", 0.5))),
    ("an empty description", ("config.json",), weights(_cut("config.json", 0))),
    ("a list as a description", ("config.json", "object"), weights(put(config__json="[1]"))),
    ("no description", ("config.json",), weights(lambda folder: (folder / "config.json").unlink())),
    ("no weights", ("no weights", "new"), weights(lambda folder: (folder / "model.safetensors").unlink())),
    ("no vocabulary", ("vocab",), weights(lambda folder: (folder / "vocab.txt").unlink())),
    ("a pointer of Git LFS as weights", ("lfs",), weights(put(model__safetensors=POINTER))),
    ("a pointer of Git LFS as a description", ("lfs",), weights(put(config__json=POINTER))),
    ("a pointer of Git LFS as a vocabulary", ("lfs|vocab",), weights(put(vocab__txt=POINTER))),
    ("a page of the web as a description", ("config.json",), weights(put(config__json=PAGE))),
    ("a page of the web as weights", ("pytorch_model.bin",), weights(only(config__json='{"model_type": "bert", "hidden_size": 64, "vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 1}', vocab__txt="[PAD]\n", pytorch_model__bin=PAGE))),
    ("the folder of the Hub's cache", ("snapshots",), weights(moved("snapshots/abc"))),
    ("the cache of the Hub, with deleted blobs", ("blobs|missing|exist", "new"), weights(_cached, "new/models--me--tiny/snapshots/abc")),
    ("the folder above the model", ("no weights", "tiny"), weights(moved("tiny"))),
    ("GPT-2", ("gpt2",), weights(config(model_type="gpt2", architectures=["GPT2LMHeadModel"]))),
    ("Llama", ("llama",), weights(config(model_type="llama"))),
    ("T5", ("t5",), weights(config(model_type="t5"))),
    ("a model of images", ("vit",), weights(config(model_type="vit"))),
    ("a model of sounds", ("whisper",), weights(config(model_type="whisper"))),
    ("CLIP", ("clip",), weights(config(model_type="clip", text_config={}))),
    ("a pipeline of diffusers", ("model_index.json", "no weights"), weights(only(model_index__json="{}"))),
    ("a model of spaCy", ("config.cfg", "no weights"), weights(only(config__cfg="[nlp]\n", meta__json="{}"))),
    ("vectors of word2vec", ("vectors.txt",), weights(only(vectors__txt="2 2\na 1 2\nb 1 2\n"), "new/vectors.txt")),
    ("a model of fastText", ("wiki.bin",), weights(only(wiki__bin=b"\xba\x16O/" + bytes(99)), "new/wiki.bin")),
    ("weights of TensorFlow", ("tf_model.h5", "no weights"), weights(lambda folder: shutil.move(folder / "model.safetensors", folder / "tf_model.h5"))),
    ("weights of Flax", ("flax_model.msgpack", "no weights"), weights(lambda folder: shutil.move(folder / "model.safetensors", folder / "flax_model.msgpack"))),
    ("a graph of ONNX", ("model.onnx", "no weights"), weights(lambda folder: shutil.move(folder / "model.safetensors", folder / "model.onnx"))),
    ("Google's checkpoint", ("bert_model.ckpt", "no weights"), weights(only(bert_config__json="{}", vocab__txt="a\n", bert_model__ckpt__index=b"1"))),
    ("an index of a part that is missing", ("model-2.safetensors",), weights(lambda folder: (put(model__safetensors__index__json='{"weight_map": {"a": "model-2.safetensors"}}')(folder), (folder / "model.safetensors").unlink()))),
    ("an index of a part elsewhere", ("../other",), weights(lambda folder: (put(model__safetensors__index__json='{"weight_map": {"a": "../other.safetensors"}}')(folder), (folder / "model.safetensors").unlink()))),
    ("an index without parts", ("weight_map|index",), weights(lambda folder: (put(model__safetensors__index__json="{}")(folder), (folder / "model.safetensors").unlink()))),
    ("a vocabulary that is too long", ("vocab",), weights(lambda folder: (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(5000))])))),
    ("another width than that of the weights", ("hidden_size|embeddings|size", "128|64"), weights(config(hidden_size=128, num_attention_heads=2))),
    ("more layers than the weights have", ("layers.3|layer.3|layers.2|layer.2|layers.1|layer.1",), weights(config(num_hidden_layers=4))),
    ("a width that heads do not divide", ("num_attention_heads", "64"), weights(config(num_attention_heads=7))),
    ("no width", ("hidden_size",), weights(config(hidden_size=None))),
    ("a width as a word", ("hidden_size", "wide"), weights(config(hidden_size="wide"))),
    ("a negative number of layers", ("num_hidden_layers", "-1"), weights(config(num_hidden_layers=-1))),
    ("an unknown activation", ("hidden_act", "mystery"), weights(config(hidden_act="mystery"))),
    ("relative positions", ("position_embedding_type",), weights(config(position_embedding_type="relative_key"))),
    ("a decoder", ("is_decoder",), weights(config(is_decoder=True))),
    ("a kind of model that nobody knows", ("mybert",), weights(config(model_type="mybert", auto_map={"AutoModel": "modeling.MyBert"}))),
    ("weights of NaN", ("nan|finite", "new|weights|embeddings"), weights(tensors(_nan))),
    ("a whole model in pickle", ("pytorch_model.bin", "state_dict|dictionary"), weights(pickled(_module))),
    ("a list in pickle", ("pytorch_model.bin", "state_dict|dictionary"), weights(pickled(lambda _: [1, 2]))),
    ("a file of weights for another model", ("weights|tensors", "new|model.safetensors"), weights(tensors(lambda found: {"conv1.weight": next(iter(found.values())).clone()}))),
    ("an archive of a model", ("new/model.tar.gz",), weights(put(model__tar__gz=gzip.compress(b"x")), "new/model.tar.gz")),
    ("a zip of a model", ("new/model.zip",), weights(put(model__zip=b"PK\x03\x04"), "new/model.zip")),
    ("the address of a model", ("huggingface.co",), weights(put(), "https://huggingface.co/google-bert/bert-base-uncased")),
    ("the name of a model in words", ("bert base uncased",), weights(put(), "BERT base uncased")),
    ("the name of a sentence encoder without owner", ("all-minilm-l6-v2",), weights(put(), "all-MiniLM-L6-v2")),
    ("the description in place of its folder", ("config.json",), weights(put(), "new/config.json")),
    ("a tokenizer that is cut off", ("tokenizer.json",), weights(put(tokenizer__json='{"version": "1.0", "mod'))),
    ("an empty tokenizer", ("tokenizer.json",), weights(put(tokenizer__json="{}"))),
    ("a tokenizer of a class of its own", ("mytokenizer|tokenizer_class",), weights(put(tokenizer_config__json='{"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["tok.MyTokenizer", null]}}'))),
    ("settings of a tokenizer that are cut off", ("tokenizer_config.json",), weights(put(tokenizer_config__json='{"do_lower_'))),
    ("sentencepiece alone", ("sentencepiece|spiece|vocab",), weights(lambda folder: (shutil.move(folder / "vocab.txt", folder / "spiece.model")))),
    ("a pooling that is cut off", ("1_pooling",), weights(put(modules__json='[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]', **{"1_Pooling___config__json": '{"word_'}), "new", "--pooling", "model")),
    ("a sentence encoder with an LSTM", ("lstm",), weights(put(modules__json='[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "path": "1_LSTM", "type": "sentence_transformers.models.LSTM"}]'), "new", "--pooling", "model")),
    ("a list of modules that is no list", ("modules.json",), weights(put(modules__json="{}"), "new", "--pooling", "model")),
    ("adapters of a task that are not there", ("nowhere",), setting("category.yaml", "lora: {from: nowhere}")),
    ("adapters of a task that are a model", ("adapter",), setting("category.yaml", "lora: {from: encoder}")),
    ("own models for start_from that are not there", ("start_from", "nowhere"), setting("config.yaml", "start_from: nowhere")),
    ("an encoder for start_from", ("start_from|encoder",), setting("config.yaml", "start_from: encoder")),
]  # fmt: skip

SETTINGS: list[Entry] = [
    (f"{name}: {value}", words, setting("config.yaml", f"{name}: {value}"))
    for name, value, *words in (
        ("on", "push", "'on'"),
        ("quiet", "sure", "quiet", "sure"),
        ("overwrite", "2", "overwrite", "2"),
        ("num_epochs", "[3]", "num_epochs", "3"),
        ("batch_size", "8 16", "batch_size", "8 16"),
        ("batch_size", "8.5", "batch_size", "8.5"),
        ("batch_size", "auto", "batch_size", "auto"),
        ("learning_rate", "5e", "learning_rate", "5e"),
        ("learning_rate", "2e-5, 3e-5", "learning_rate", "3e-5"),
        ("learning_rate", "1/1000", "learning_rate", "1/1000"),
        ("learning_rate", ".nan", "learning_rate", "nan"),
        ("learning_rate", "{{ lr }}", "config.yaml"),
        ("random_seed", "1.5", "random_seed", "1.5"),
        ("random_seed", "-1", "random_seed", "-1"),
        ("precision", "16", "precision", "16"),
        ("device", "cuda:7", "device", "cuda"),
        ("num_devices", "64", "num_devices", "64"),
        ("optimizer", "adamm", "adamm", "adam"),
        ("optimizer", "lion", "lion"),
        ("lr_scheduler", "cosin", "cosin", "cosine"),
        ("mixing", "roundrobin", "roundrobin"),
        ("save_path", "*nothing", "config.yaml", "nothing"),
        ("save_path", "!!python/name:os.system", "config.yaml", "python"),
        ("save_path", "/dev/null/out", "/dev/null"),
        ("save_path", "category.yaml", "category.yaml"),
        ("save_path", ".", "folder|empty|config.yaml"),
        ("save_path", '""', "save_path"),
        ("save_path", "%USERPROFILE%\\out", "save_path", "%"),
        ("save_path", "C:\\out", "save_path", "c:"),
        ("save_path", "“out”", "save_path", "“out”|quot"),
        ("data_cache", "category.yaml", "category.yaml"),
        ("defaults", "[base]", "defaults"),
        ("_target_", "palm.Controller", "_target_"),
        ("model_name_or_path", "bert-base-uncased", "model_name_or_path", "pretrain_path"),
        ("per_device_train_batch_size", "8", "per_device_train_batch_size", "batch_size"),
        ("evaluation_strategy", "steps", "evaluation_strategy", "eval_every"),
        ("do_train", "true", "do_train"),
        ("max_epochs", "3", "max_epochs", "num_epochs"),
        ("seed", "3", "seed"),
        ("stages", "[{name: one, epochs: 3}]", "epochs"),
        ("stages", "[one, two]", "stages"),
        ("tasks_per_step", "0", "tasks_per_step"),
        ("tasks_per_step", "9", "tasks_per_step", "9"),
        ("mix_ratio", "1 1 1 1", "mix_ratio"),
        ("eval_every_n_steps", "0", "eval_every_n_steps"),
        ("save_every_n_steps", "often", "save_every_n_steps", "often"),
        ("print_every_n_steps", "0", "print_every_n_steps"),
        ("keep_last_n", "-5", "keep_last_n"),
        ("max_steps", "0", "max_steps"),
        ("freeze", "layer3", "freeze", "layer3"),
        ("freeze", "100", "freeze", "100"),
        ("layerwise_decay", "2", "layerwise_decay", "2"),
        ("loggers", "tensorbord", "tensorbord", "tensorboard"),
        ("callbacks", "print", "callbacks", "train(callbacks"),
        ("callbacks", "nowhere.Callback", "callbacks", "train(callbacks"),
        ("gradient_accumulation_steps", "0", "gradient_accumulation_steps"),
        ("pooling", "average", "pooling", "average", "mean"),
        ("balance", "yes", "balance"),
        ("ema_decay", "2", "ema_decay"),
    )
] + [
    (f"a task with {name}: {value}", words, setting("category.yaml", f"{name}: {value}"))
    for name, value, *words in (
        ("label_map", "{account:0, billing:1, bug:2}", "label_map"),
        ("label_map", "{account: 0.5, billing: 1, bug: 2}", "label_map", "0.5"),
        ("label_map", "{account: -1, billing: 0, bug: 1}", "label_map", "-1"),
        ("label_map", "[{account: 0}, {billing: 1}]", "label_map"),
        ("label_map", "account", "label_map|account"),
        ("metrics", "accuracy macro_f1", "accuracy macro_f1"),
        ("metrics", "[accuracy; macro_f1]", "accuracy; macro_f1"),
        ("metrics", "{accuracy: max}", "metrics"),
        ("columns", "{text_a: [message], label: category}", "columns|text_a"),
        ("columns", "{text_a: 0, label: 1}", "columns", "0"),
        ("columns", "{text_a: message, label: }", "columns|label"),
        ("where", "{category: }", "where"),
        ("where", "{category: []}", "where"),
        ("where", '{urgency: "> 3"}', "where", "> 3"),
        ("where", "{category: bug, category: billing}", "category", "twice"),
        ("split", "{dev: -0.1}", "split", "-0.1"),
        ("split", "{dev: ten}", "split", "ten"),
        ("split", "80/20", "split", "80/20"),
        ("sample", "-5", "sample", "-5"),
        ("sample", "1000000", "sample", "1000000"),
        ("sample_per_label", "0", "sample_per_label"),
        ("train_file", "[]", "train_file"),
        ("train_file", '""', "train_file"),
        ("train_file", "{train: ../tickets.csv}", "train_file"),
        ("train_file", "../tickets.csv, ../tickets.csv", "tickets.csv"),
        ("train_file", "C:\\data\\tickets.csv", "tickets.csv"),
        ("train_file", "stanfordnlp/imdb", "imdb"),
        ("train_file", "http://localhost:9/t.csv", "localhost"),
        ("train_file", "hdfs://here/t.csv", "hdfs"),
        ("dev_file", "tickets.csv\nsplit: !", "tickets.csv"),
        ("max_seq_len", "100000", "max_seq_len"),
        ("label_smoothing", "1.5", "label_smoothing", "1.5"),
        ("n_classes", "three\nlabel_map: !", "n_classes", "three"),
        ("vocab_path", "encoder", "encoder"),
        ("vocab_path", "encoder/config.json", "config.json|vocab"),
        ("num_workers", "4", "num_workers"),
    )
] + [
    ("two documents in one file", ("config.yaml", "document|---"), written("config.yaml", lambda text: f"{text}---\n{text}")),
    ("a wide colon", ("config.yaml", "："), written("config.yaml", lambda text: text + "num_epochs：3\n")),
    ("a hard blank behind the colon", ("config.yaml", "num_epochs"), written("config.yaml", lambda text: text + "num_epochs:\u00a03\n")),
    ("a hard blank as indentation", ("category.yaml",), written("category.yaml", lambda text: text + "lora:\n\u00a0\u00a0rank: 8\n")),
    ("a list that is not closed", ("config.yaml",), written("config.yaml", lambda text: text + "loggers: [csv\n")),
    ("indentation that is not even", ("category.yaml:",), written("category.yaml", lambda text: text + "lora:\n   rank: 8\n  alpha: 8\n")),
    ("a configuration of Python", ("config.yaml",), written("config.yaml", lambda _: "config = dict(\n    num_epochs=3,\n)\n")),
    ("a configuration of INI", ("config.yaml",), written("config.yaml", lambda _: "[train]\nnum_epochs = 3\n")),
    ("an empty configuration", ("task_instance|config.yaml",), written("config.yaml", lambda _: "")),
    ("a configuration in Latin-1", ("config.yaml", "utf-8"), written("config.yaml", lambda text: (text + "# für\n").encode("latin-1"))),
    ("an empty task", ("category.yaml|category",), written("category.yaml", lambda _: "")),
    ("a task in JSON lines", ("category.yaml",), written("category.yaml", lambda _: '{"reader": "cls"}\n{"paradigm": "cls"}\n')),
]  # fmt: skip

HEAD = "label,text_a\n"


def numbers(cell: str, *words: str) -> Entry:
    """A number in a form that palm does not read."""
    return (
        f"{cell!r} as a number",
        ("t.jsonl:1", *words),
        table("regression", "t.jsonl", _texts(lambda _: cell)),
    )


def kind(name: str, row: dict[str, Any], made: str, *words: str) -> Entry:
    """A row of a kind of task that is wrong, in a table of nothing else."""
    return made, words, table(name, "t.jsonl", [row] * 4)


def file_of(name: str, content: str | bytes, made: str, *words: str) -> Entry:
    """A file of classes that is none."""
    return made, words, table("cls", name, content)


def _linked(folder: Path) -> None:
    (folder / "a.csv").symlink_to("b.csv")
    (folder / "b.csv").symlink_to("a.csv")
    (folder / "t.csv").write_text(_csv(GOOD))
    table("cls", "t.csv", _csv(GOOD), "train_file: a.csv")(folder)


def _folder_of_datasets(folder: Path) -> None:
    (folder / "data/train").mkdir(parents=True)
    (folder / "data/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    table("cls", "t.csv", _csv(GOOD), "train_file: data")(folder)


def _arrow(folder: Path, suffix: str = "parquet", cut: float = 1.0) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    rows = pa.table({"label": [0, 1] * 20, "text_a": [f"look at order {k}" for k in range(40)]})
    parquet.write_table(rows, folder / f"t.{suffix}")
    data = (folder / f"t.{suffix}").read_bytes()
    return data[: int(cut * len(data))]


PER = {"text_a": ["anna", "is"], "label": ["B-PER", "O"]}
WHO = {"text_a": "anna came", "spans": [{"start": 0, "end": 4, "label": "who"}]}
CHOICE = {"text_a": "what", "choices": ["a boat", "a sun"], "label": 0}
RANKED = {"text_a": "what", "candidates": ["a boat", "a sun"], "label": [1, 0]}
PAIR = {"text_a": "a boat", "text_b": "the boat", "label": 1}


def _span(**changes: Any) -> dict[str, Any]:
    return {**WHO, "spans": [{"start": 0, "end": 4, "label": "who", **changes}]}


FILES: list[Entry] = [
    *(numbers(cell, cell) for cell in ("€12", "12 EUR", "12-15", "~12", "12k", "1.234,56", "(12)", "1 200", "½", "=A1+B1", "'5", "TRUE", "#DIV/0!", "1e400", "12 / 5")),
    ("a number that is too large", ("1e39|1e+39",), table("regression", "t.jsonl", _texts(lambda k: 1e39 if k else 1.0))),
    ("a count with a unit", ("t.jsonl:1", "3 people"), table("count", "t.jsonl", _texts(lambda _: "3 people"))),
    ("a count with a decimal", ("t.jsonl:1", "2.5"), table("count", "t.jsonl", _texts(lambda _: 2.5))),
    ("the same huge count in all rows", ("10000000000",), table("count", "t.jsonl", _texts(lambda _: 10**10))),
    ("a count beyond all counts", ("1e+10", "median"), table("count", "t.jsonl", _texts(lambda k: 10**10 if k == 3 else k))),
    ("9999 for an unknown price", ("9999", "median"), table("regression", "t.jsonl", _texts(lambda k: 9999 if k % 4 == 3 else k / 2))),
    ("ids of pandas with a gap", ("t.jsonl:2", "2"), table("cls", "t.jsonl", _texts(lambda k: 2.0 * (k % 2)))),
    ("names and ids in one column", ("t.jsonl:2", "good"), table("cls", "t.jsonl", _texts(lambda k: [0, "good"][k % 2]))),
    ("an error of Excel as a class", ("#ref!",), table("named", "t.jsonl", _texts(lambda k: ["good", "#REF!"][k % 2]))),
    ("pandas' nan as a class", ("nan|no label|without",), table("named", "t.csv", _csv(_texts(lambda k: ["good", "nan"][k % 2])))),
    ("None as a class", ("none|no label|without",), table("named", "t.csv", _csv(_texts(lambda k: ["good", "None"][k % 2])))),
    ("a class in quotes", ("'good'",), table("named", "t.jsonl", _texts(lambda k: ["'good'", "bad"][k % 2]))),
    ("an array of Postgres for several labels", ("t.csv:2", "{a,b}"), table("multi_label", "t.csv", HEAD + '"{a,b}",the phone\n' * 4)),
    ("switches for several labels", ("t.jsonl:1", "true"), table("multi_label", "t.jsonl", _texts(lambda _: [True, False]))),
    ("lists in lists for several labels", ("t.jsonl:1", "a"), table("multi_label", "t.jsonl", _texts(lambda _: [["a"]]))),
    ("null for several labels", ("t.jsonl:1", "none|null"), table("multi_label", "t.jsonl", _texts(lambda _: [None]))),
    ("an id beyond several labels", ("t.jsonl:1", "7"), table("multi_label", "t.jsonl", _texts(lambda _: [7]))),
    ("a column for each label", ("t.csv:1", "label"), table("multi_label", "t.csv", "a,b,text_a\n" + "1,0,the phone\n" * 4)),
    kind("seq_label", {**PER, "label": ["B-PER", None]}, "a word without a tag", "t.jsonl:1", "none|null"),
    kind("seq_label", {**PER, "text_a": ["anna", None]}, "null as a word", "t.jsonl:1", "none|null"),
    kind("seq_label", {**PER, "label": ["PER", "O"]}, "a tag without its prefix", "t.jsonl:1", "PER"),
    kind("seq_label", {**PER, "label": ["B-PER", "o"]}, "a lower o as a tag", "t.jsonl:1", "'o'"),
    kind("seq_label", {**PER, "label": [1, 7]}, "a tag by an id that is not there", "t.jsonl:1", "7"),
    kind("seq_label", {**PER, "label": {"0": "B-PER", "1": "O"}}, "an object of tags", "t.jsonl:1"),
    ("CoNLL's columns", ("t.conll|columns|label",), table("seq_label", "t.conll", "EU B-PER\nhas O\n\nIt O\n")),
    ("CoNLL's columns as a TSV", ("t.tsv:1", "label"), table("seq_label", "t.tsv", "EU\tB-PER\nhas\tO\n\nIt\tO\n")),
    kind("span", _span(start="0"), "a place as a text", "t.jsonl:1", "start"),
    kind("span", _span(start=1.5), "half a place", "t.jsonl:1", "1.5"),
    kind("span", _span(start=4, end=0), "a span that ends before it starts", "t.jsonl:1", "4"),
    kind("span", _span(start=2, end=2), "a span of nothing", "t.jsonl:1", "2"),
    kind("span", _span(start=-4), "a place before the text", "t.jsonl:1", "-4"),
    kind("span", {**WHO, "spans": [{"start": 0, "end": 4}]}, "a span without a label", "t.jsonl:1", "label"),
    kind("span", {**WHO, "spans": {"start": [0], "end": [4], "label": ["who"]}}, "spans of lists", "t.jsonl:1", "spans"),
    kind("span", {**WHO, "spans": "[0, 4, who]"}, "spans as a text", "t.jsonl:1", "spans|[0, 4, who]"),
    kind("span", {**WHO, "spans": [[0, 4, "who"]]}, "spans as triples", "t.jsonl:1", "start|spans"),
    kind("span", {"text_a": ["anna", "came"], "spans": [{"start": 0, "end": 9, "label": "who"}]}, "characters of a list of words", "t.jsonl:1", "9"),
    kind("relation", {**OWNS, "relations": [{"head": 0, "tail": 1, "label": "eats"}]}, "a relation that the map lacks", "t.jsonl:1", "eats"),
    kind("relation", {**OWNS, "relations": [{"head": -1, "tail": 1, "label": "owns"}]}, "the last span as -1", "t.jsonl:1", "-1"),
    kind("relation", {**OWNS, "relations": [[0, 1, "owns"]]}, "relations as triples", "t.jsonl:1", "head|relations"),
    kind("relation", {**OWNS, "spans": []}, "relations without spans", "t.jsonl:1", "0|spans"),
    kind("match", {**PAIR, "label": "yes"}, "yes as an id", "t.jsonl:1", "yes"),
    kind("match", {**PAIR, "label": 2}, "a match of 2", "t.jsonl:1", "2"),
    kind("match", {**PAIR, "text_b": None}, "no second text in a row", "t.jsonl:1", "text_b"),
    kind("match", {**PAIR, "text_b": ["one", 2]}, "a list with a number as a text", "t.jsonl:1", "text_b|2"),
    kind("embedding", {"text_a": "a boat", "text_b": ""}, "an empty second text of a pair", "t.jsonl:1", "text_b"),
    kind("multiple_choice", {**CHOICE, "choices": {"A": "a boat", "B": "a sun"}}, "choices by letters", "t.jsonl:1", "choices"),
    kind("multiple_choice", {**CHOICE, "choices": ["a boat", None]}, "null as a choice", "t.jsonl:1", "choices|none"),
    kind("multiple_choice", {**CHOICE, "label": -1}, "the last choice as -1", "t.jsonl:1", "-1"),
    kind("multiple_choice", {**CHOICE, "label": [1, 0]}, "one-hot of choices", "t.jsonl:1", "[1, 0]"),
    kind("multiple_choice", {**CHOICE, "label": None}, "no right choice", "label"),
    kind("ranking", {**RANKED, "label": ["yes", "no"]}, "relevance in words", "t.jsonl:1", "yes"),
    kind("ranking", {**RANKED, "label": [1, float("nan")]}, "relevance of NaN", "t.jsonl:1", "nan"),
    kind("ranking", {**RANKED, "label": [1, -1]}, "negative relevance", "t.jsonl:1", "-1"),
    kind("ranking", {**RANKED, "candidates": [], "label": []}, "no candidates", "t.jsonl:1", "candidates"),
    kind("ranking", {**RANKED, "candidates": "a boat | a sun"}, "candidates in one text", "t.jsonl:1", "candidates"),
    kind("mrc", {**QA, "answers": [{"text": "red boat", "answer_start": -4}]}, "an answer before the text", "t.jsonl:1", "-4|red boat"),
    kind("mrc", {**QA, "answers": [{"text": "", "answer_start": 4}]}, "an empty answer", "t.jsonl:1"),
    kind("mrc", {"question": "what is lost", "answers": QA["answers"]}, "a question without a context", "t.jsonl", "context"),
    kind("mrc", {"context": QA["context"], "answers": QA["answers"]}, "an answer without a question", "t.jsonl", "question"),
    kind("mlm", {"sentence": "a boat"}, "a column of another name", "t.jsonl:1", "text_a"),
    file_of("t.csv.gz", b"not gzip", "a file that is not compressed, named .gz", "t.csv.gz"),
    file_of("t.csv.gz", gzip.compress(_csv(GOOD).encode())[:-20], "a compressed file that is cut off", "t.csv.gz"),
    file_of("t.csv", gzip.compress(_csv(GOOD).encode()), "a compressed file named .csv", "t.csv", "gz|compressed"),
    ("a Parquet file that is cut off", ("t.parquet",), lambda folder: table("cls", "t.parquet", _arrow(folder, cut=0.7))(folder)),
    ("a Parquet file named .arrow", ("t.arrow",), lambda folder: table("cls", "t.arrow", _arrow(folder))(folder)),
    ("a Parquet file named .jsonl", ("t.jsonl",), lambda folder: table("cls", "t.jsonl", _arrow(folder))(folder)),
    file_of("t.xls", b"\xd0\xcf\x11\xe0" + bytes(99), "an old workbook", "t.xls"),
    file_of("t.ods", b"PK\x03\x04" + bytes(99), "a table of LibreOffice", "t.ods"),
    file_of("t.docx", b"PK\x03\x04" + bytes(99), "a document", "t.docx"),
    file_of("t.pdf", b"%PDF-1.7" + bytes(99), "a PDF", "t.pdf"),
    file_of("t.pkl", b"\x80\x04" + bytes(99), "a pickle of pandas", "t.pkl"),
    file_of("t.npy", b"\x93NUMPY" + bytes(99), "an array of NumPy", "t.npy"),
    file_of("t.sqlite", b"SQLite format 3\0" + bytes(99), "a database", "t.sqlite"),
    file_of("t.csv", "sep=;\n" + _csv(GOOD, separator=";"), "Excel's line about the separator", "t.csv:1", "sep|label"),
    file_of("t.csv", "Report 2026,\n" + _csv(GOOD), "a title above the header", "t.csv:1", "report|label"),
    file_of("t.csv", _csv(GOOD) + "Total,12\n", "a total below the table", "t.csv:14", "total"),
    file_of("t.csv", "| label | text_a |\n|---|---|\n" + "| 0 | a boat |\n" * 4, "a table of Markdown", "t.csv:1", "label"),
    file_of("t.csv", _csv(GOOD).replace("label,text_a", "label , text_a"), "blanks in the header", "t.csv:1", "label"),
    file_of("t.csv", _csv(GOOD).replace("look", "lo\0ok", 1).replace("0,", "x\0,", 1), "a NUL in a label", "t.csv:2"),
    file_of("t.csv", "\n" * 9, "only empty lines", "t.csv"),
    file_of("t.csv", _csv(GOOD) + "0\n", "a row that is too short at the end", "t.csv:14"),
    file_of("t.jsonl", "".join(json.dumps(row) + "\n" for row in GOOD).encode("utf-16"), "JSON lines in UTF-16", "t.jsonl", "utf-8"),
    file_of("t.jsonl", "".join(json.dumps(row) + "\n" for row in GOOD)[:-9], "JSON lines that are cut off", "t.jsonl:12"),
    file_of("t.jsonl", "\n".join(json.dumps({"data": row}) for row in GOOD), "rows in an object", "t.jsonl", "label", "data"),
    file_of("t.jsonl", "{label: 0, text_a: 'a boat'}\n" * 4, "objects of JavaScript", "t.jsonl:1"),
    file_of("t.jsonl", '{"label": 0, "text_a": "a boat"}{"label": 1, "text_a": "a sun"}\n', "two objects in a line", "t.jsonl:1"),
    ("a loop of links", ("a.csv",), _linked),
    ("a folder of datasets with splits", ("data",), _folder_of_datasets),
    ("a device as a table", ("/dev/null",), table("cls", "t.csv", _csv(GOOD), "train_file: /dev/null")),
    ("a project of one-hot columns beside a title", ("t.csv",), project("Report,,\n" + _csv(_said(lambda k: KIND[k % 2])))),
    ("a project of a compressed file that is none", ("t.csv.gz",), project(b"x", name="t.csv.gz")),
    ("a project of a Markdown table", ("texts|column|separat",), project("| message | kind |\n|---|---|\n" + "| the phone is broken | bug |\n" * 40)),
    ("a project of a folder that is not there", ("nowhere.jsonl",), command("init", "new", "--from", "nowhere.jsonl")),
    ("a project of a match without a second text", ("text_b|second",), project(_csv(_said(lambda k: KIND[k % 2])), "--tasks", "kind=match")),
    ("a project of steps in words", ("kind",), project(_csv(_said(lambda k: f"{k} or more {k}")), "--tasks", "kind=regression")),
]  # fmt: skip


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of the environment."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def within(context: Callable[[Path], Any], *words: str) -> Do:
    """Run a command within a context that is made of the folder."""

    def do(folder: Path) -> None:
        with context(folder):
            run(*words)

    return do


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file become larger, as on a disk that is full; what is said goes through a pipe meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = [os.dup(1), os.dup(2)]
    reading, writing = os.pipe()
    for number in (1, 2):
        os.dup2(writing, number)
    os.close(writing)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.stdout.flush()
        sys.stderr.flush()
        for number, each in zip((1, 2), kept, strict=True):
            os.dup2(each, number)
            os.close(each)
        # Somebody may have kept a copy of the other end, so its closing is not waited for.
        os.set_blocking(reading, False)
        os.write(2, os.read(reading, 1 << 16))
        os.close(reading)


@contextmanager
def forbidden(path: Path, mode: int = 0) -> Iterator[None]:
    """Take the permission of a file or folder away, as another user, because root may do everything."""
    for parent in path.absolute().parents:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    path.chmod(mode)
    with tempfile.TemporaryDirectory() as cache, environment(PALM_DATA_CACHE=cache):
        Path(cache).chmod(0o777)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
            path.chmod(0o755)


TRAIN = ("train", "config.yaml", "--overwrite", "True")
PREDICT = ("predict", "--model", OLD, "--input", "../tickets.csv", "--output", "a.csv")


def broken(change: Callable[[Path], object], *words: str) -> Do:
    """Change the project's trained model, and run a command."""
    return lambda folder: (change(folder / OLD), run(*words))


MACHINE: list[Entry] = [
    ("a cache that is a file", ("palm_data_cache|config.yaml|cache",), within(lambda folder: environment(PALM_DATA_CACHE=str(folder / "config.yaml")), *TRAIN)),
    ("a cache that is a device", ("palm_data_cache|/dev/null",), within(lambda _: environment(PALM_DATA_CACHE="/dev/null/x"), *TRAIN)),
    ("a largest cell in words", ("palm_max|cell",), within(lambda _: environment(PALM_MAX_CELL="big"), *TRAIN)),
    ("a full disk while training", ("file too large|space|disk",), within(lambda _: full_disk(50_000), *TRAIN)),
    ("a full disk while predicting", ("a.csv|file too large|space|disk",), within(lambda _: full_disk(500), *PREDICT)),
    ("a full disk for a report", ("file too large|space|disk",), within(lambda _: full_disk(5_000), "report", "output", "--output", "r.html")),
    ("a full disk for a project", ("file too large|space|disk",), within(lambda _: full_disk(100), "init", "new", "--from", "../tickets.csv")),
    ("a table that may not be read", ("tickets.csv", "permission"), within(lambda folder: forbidden(folder.parent / "tickets.csv"), "check", "config.yaml")),
    ("a configuration that may not be read", ("config.yaml", "permission"), within(lambda folder: forbidden(folder / "config.yaml"), "check", "config.yaml")),
    ("a task that may not be read", ("category.yaml", "permission"), within(lambda folder: forbidden(folder / "category.yaml"), "check", "config.yaml")),
    ("weights that may not be read", ("permission",), within(lambda folder: forbidden(folder / "encoder/model.safetensors"), *TRAIN)),
    ("a model that may not be read", ("permission",), within(lambda folder: forbidden(folder / OLD / "model.safetensors"), *PREDICT)),
    ("a folder of runs that may not be written", ("permission",), within(lambda folder: forbidden(folder, 0o555), *TRAIN)),
    ("a folder of predictions that may not be written", ("permission",), within(lambda folder: forbidden(folder, 0o555), *PREDICT)),
    ("a project in a folder that may not be written", ("permission",), within(lambda folder: forbidden(folder, 0o555), "init", "new", "--tasks", "cls")),
    ("a model that is cut off", ("model.safetensors",), broken(_cut("model.safetensors", 0.5), *PREDICT)),
    ("a model whose description is changed", ("config.json",), broken(put(config__json="{}"), *PREDICT)),
    ("a model without its manifest", ("manifest",), broken(lambda folder: (folder / "manifest.json").unlink(), *PREDICT)),
    ("a model without its vocabulary", ("vocab|tokenizer",), broken(lambda folder: [path.unlink() for path in folder.rglob("vocab.txt")], *PREDICT)),
    ("an empty model", ("infer_model",), broken(only(x=""), *PREDICT)),
    ("a model with the head of another", ("heads.safetensors",), broken(lambda folder: shutil.copyfile(folder.parent.parent / "price/infer_model/heads.safetensors", folder / "heads.safetensors"), *PREDICT)),
]  # fmt: skip


def again(*words: str, **changes: str) -> Do:
    """Run into the folder of the project's run, with changed settings."""
    return lambda folder: (
        edit(folder / "config.yaml", "\n".join(f"{n}: {v}" for n, v in changes.items())),
        run(*words),
    )


def evaluated_predictions(folder: Path) -> None:
    """Evaluate a model, whose labels are in the column `label`, on its predictions of a file without labels."""
    table("cls", "t.csv", _csv(GOOD))(folder)
    (folder / "new.csv").write_text("text_a\na phone\na team\n")
    run("predict", "--model", "output/t/infer_model", "--input", "new.csv", "--output", "a.jsonl")
    run("evaluate", "--model", "output/t/infer_model", "--input", "a.jsonl")


COMMANDS: list[Entry] = [
    ("another seed into one folder", ("output", "random_seed|overwrite"), again("train", "config.yaml", overwrite="False", random_seed="5")),
    ("another encoder into one folder", ("output", "overwrite"), again("train", "config.yaml", overwrite="False", hidden_dropout_prob="0.3")),
    ("resuming with another batch", ("batch_size", "resume|checkpoint|overwrite"), again("train", "config.yaml", "--resume", "auto", overwrite="False", batch_size="3")),
    ("resuming from a model", ("infer_model",), again("train", "config.yaml", "--resume", OLD)),
    ("resuming from a table", ("tickets.csv",), again("train", "config.yaml", "--resume", "../tickets.csv")),
    ("resuming and overwriting", ("resume", "overwrite"), command("train", "config.yaml", "--resume", "auto", "--overwrite", "True")),
    ("predict the configuration", ("config.yaml",), command("predict", "--model", OLD, "--input", "config.yaml", "--output", "a.csv")),
    ("predict the model", ("infer_model",), command("predict", "--model", OLD, "--input", OLD, "--output", "a.csv")),
    ("predict a workbook", ("other.xlsx",), command("predict", "--model", OLD, "--input", "other.xlsx", "--output", "a.csv")),
    ("predict predictions", ("numbers.csv", "message"), lambda _: (run(*PREDICT), run("predict", "--model", OLD, "--input", "a.csv", "--output", "b.csv"), run("predict", "--model", OLD, "--input", "numbers.csv", "--output", "a.csv"))),
    ("predict with the encoder", ("encoder",), command("predict", "--model", "encoder", "--input", "../tickets.csv", "--output", "a.csv")),
    ("predict with a checkpoint", ("checkpoint",), command("predict", "--model", "output/checkpoints", "--input", "../tickets.csv", "--output", "a.csv")),
    ("predict into the model", ("infer_model",), command("predict", "--model", OLD, "--input", "../tickets.csv", "--output", OLD)),
    ("predict nothing from a file with a header", ("header|rows|d0.csv|0",), lambda folder: ((folder / "d0.csv").write_text("message\n"), run("predict", "--model", OLD, "--input", "d0.csv", "--output", "a.csv"))),
    ("a part beyond all parts", ("--shard|shard", "3/2"), command(*PREDICT[:-1], "a", "--shard", "3/2")),
    ("a part in words", ("shard", "first"), command(*PREDICT[:-1], "a", "--shard", "first")),
    ("a merge of parts that are not there", ("1|shard",), command(*PREDICT[:-1], "a", "--shard", "merge/2")),
    ("evaluate without a file", ("--input",), command("evaluate", "--model", OLD)),
    ("evaluate predictions", ("a.jsonl:1", "probability"), evaluated_predictions),
    ("evaluate prices as classes", ("price|label",), command("evaluate", "--model", "output/price/infer_model", "--input", "numbers.csv")),
    ("check a model", ("infer_model",), command("check", OLD)),
    ("check a table", ("tickets.csv",), command("check", "../tickets.csv")),
    ("check with an option of train", ("--epochs", "num_epochs"), command("check", "config.yaml", "--epochs", "2")),
    ("a setting twice on the command line", ("num_epochs", "twice"), command("train", "config.yaml", "--num_epochs", "2", "--num_epochs", "3")),
    ("a setting with a blank", ("learning rate",), command("train", "config.yaml", "--learning rate", "1e-4")),
    ("a setting with an underscore too many", ("_learning_rate",), command("train", "config.yaml", "--_learning_rate", "1e-4")),
    ("an empty value", ("learning_rate",), command("train", "config.yaml", "--learning_rate", "")),
    ("Hydra's way to set", ("num_epochs",), command("train", "config.yaml", "+num_epochs=3")),
    ("compare in the folder of a run", ("output",), command("compare", "config.yaml", "--output", "output")),
    ("compare with half a seed", ("seeds", "1.5"), command("compare", "config.yaml", "--seeds", "1.5", "--output", "cmp")),
    ("a sweep over a task that is not there", ("kind",), command("sweep", "config.yaml", "--grid", "kind.loss_weight=1,2", "--output", "swp")),
    ("a sweep over save_path", ("save_path",), command("sweep", "config.yaml", "--grid", "save_path=a,b", "--output", "swp")),
    ("an export to nothing", ("--to",), command("export", OLD, "--output", "new")),
    ("an export into the model", ("infer_model",), command("export", OLD, "--to", "hf", "--output", OLD)),
    ("an export of a run", ("output",), command("export", "output", "--to", "hf", "--output", "new")),
    ("an export of a folder that is not there", ("nowhere",), command("export", "nowhere", "--to", "onnx", "--output", "new")),
    ("a report of an empty folder", ("empty",), lambda folder: ((folder / "empty").mkdir(), run("report", "empty"))),
    ("a report of a run whose history is damaged", ("history.jsonl",), lambda folder: (next(folder.glob("output/**/history.jsonl")).write_text("{"), run("report", "output"))),
    ("differences of a run and a table", ("tickets.csv",), command("diff", "output", "../tickets.csv")),
    ("a look at nothing", ("nowhere",), command("inspect", "nowhere")),
    ("a server with half a port", ("port",), command("serve", "output", "--port", "80.5")),
    ("a server of one model twice", ("category",), command("serve", OLD, OLD)),
    ("a project of a name with blanks", ("my task",), command("init", "new", "--tasks", "my task=cls")),
    ("a project of one name twice", ("cls", "twice"), command("init", "new", "--tasks", "cls,cls")),
    ("a project called config", ("config",), command("init", "new", "--tasks", "config=cls")),
    ("a project in a file", ("config.yaml",), command("init", "config.yaml", "--tasks", "cls")),
    ("a component that is not there", ("clas", "cls"), command("ls", "clas")),
    ("a download of an address", ("http",), command("download", "http://localhost/model")),
]  # fmt: skip

HEADS = "from palm.paradigm import Classify, Match, Ordinal\n"
READ = "from palm.reader import ClassifyReader\nr = ClassifyReader('encoder/vocab.txt', 8)\n"

PYTHON: list[Entry] = [
    ("classes as a text", ("n_classes", "2"), program(HEADS + "Classify(n_classes='2', hidden_size=8)")),
    ("half a class", ("n_classes", "2.5"), program(HEADS + "Classify(n_classes=2.5, hidden_size=8)")),
    ("a head without its width", ("n_classes",), program(HEADS + "Classify()")),
    ("a dropout in percent", ("dropout_prob", "10"), program(HEADS + "Classify(2, 8, dropout_prob=10)")),
    ("a width of nothing", ("hidden_size",), program(HEADS + "Classify(2, 0)")),
    ("a smoothing of everything", ("label_smoothing", "1"), program(HEADS + "Classify(2, 8, label_smoothing=1.0)")),
    ("weights of too few classes", ("class_weights",), program(HEADS + "Classify(2, 8, class_weights=[1.0])")),
    ("pairs in words", ("learning_strategy", "pairs"), program(HEADS + "Match(2, 8, learning_strategy='pairs')")),
    ("one step of a scale", ("n_classes", "1"), program(HEADS + "Ordinal(1, 8)")),
    ("a vocabulary as a list", ("vocab_path|path",), program("from palm.reader import ClassifyReader\nClassifyReader(['a', 'b'], 8)")),
    ("no tokens", ("max_seq_len", "0"), program("from palm.reader import ClassifyReader\nClassifyReader('encoder/vocab.txt', 0)")),
    ("lower case in words", ("do_lower_case", "yes"), program("from palm.reader import ClassifyReader\nClassifyReader('encoder/vocab.txt', 8, do_lower_case='yes')")),
    ("texts of numbers for a reader", ("5",), program(READ + "list(r.parse([5]))")),
    ("a file for a reader that is not there", ("no.csv",), program(READ + "list(r.read('no.csv', with_targets=True))")),
    ("None to predict", ("none|list",), program("m.predict(None)")),
    ("a number to predict", ("5|list",), program("m.predict(5)")),
    ("bytes to predict", ("text 0|bytes",), program("m.predict([b'a phone'])")),
    ("one dict to predict", ("list",), program("m.predict({'text_a': 'a phone'})")),
    ("a table of pandas to predict at once", ("text|list|data frame|dataframe",), program("import pandas\nm.predict(pandas.DataFrame({'text_a': ['a phone']}))")),
    ("NaN of pandas as a text", ("text 1", "nan"), program("m.predict(['a phone', float('nan')])")),
    ("a field too many", ("text 0", "colour"), program("m.predict([{'text_a': 'a phone', 'colour': 'red'}])")),
    ("None as a file", ("none|path",), program("m.predict_file(None, 'answers')")),
    ("None to evaluate", ("none|path",), program("m.evaluate(None)")),
    ("a device that is not there", ("device", "tpu"), program("palm.load_model('output/category/infer_model', device='tpu')")),
    ("moving to a GPU that is not there", ("cuda",), program("m.to('cuda')")),
    ("a run without a table", ("train_file",), program("palm.Controller({'task_instance': 't', 'save_path': 'o', 'backbone': 'bert', 'backbone_config_path': 'encoder/config.json', 'vocab_path': 'encoder/vocab.txt', 'num_epochs': 1, 'batch_size': 2, 'learning_rate': 1e-3, 'max_seq_len': 8, 'optimizer': 'adam', 'tasks': {'t': {'reader': 'cls', 'paradigm': 'cls', 'n_classes': 2}}}, argv=[]).train()")),
    ("a task as a list", ("tasks|task_instance",), program("palm.Controller({'task_instance': ['t'], 'tasks': [{'reader': 'cls'}]}, argv=[])")),
    ("tasks of settings", ("palm.task|tasks",), program("palm.Controller(c, argv=[], tasks=[{'reader': 'cls'}])")),
    ("one task that is in no list", ("tasks",), program("palm.Controller(c, argv=[], tasks='category')")),
    ("a folder of tasks that is not there", ("nowhere",), program("palm.Controller(c, task_dir='nowhere', argv=[])")),
    ("a class in place of a callback", ("callbacks|argument",), program("class Mine:\n    def __init__(self, a): pass\npalm.Controller(c, argv=['--max_steps', '2', '--overwrite', 'True']).train(callbacks=[Mine])")),
    ("a callback that takes nothing", ("callbacks|argument",), program("palm.Controller(c, argv=['--max_steps', '2', '--overwrite', 'True']).train(callbacks=[lambda: 1])")),
    ("training a controller of predictions", ("for_train",), program("palm.Controller(c, argv=[], for_train=False).train()")),
    ("weights of None", ("pretrain_path|none",), program("palm.load_backbone(None)")),
    ("a conversion to nothing", ("nowhere",), program("palm.convert('nowhere', 'new')")),
    ("a look at None", ("none",), program("palm.inspect_directory(None)")),
    ("a plot of nothing", ("nowhere",), program("palm.plot('nowhere')")),
    ("a report of a number", ("3",), program("palm.write_report(3)")),
    ("a sweep over a list", ("space",), program("palm.sweep(c, ['learning_rate'], output='swp')")),
    ("a client of nothing", ("http|url",), program("palm.Client('localhost').predict(['a phone'])")),
]  # fmt: skip

SERVE: list[Entry] = [
    ("no body", ("json|body",), request("")),
    ("an empty object", ("texts",), request({})),
    ("null as a body", ("texts|object",), request("null")),
    ("null as texts", ("texts",), request({"texts": None})),
    ("null as a text", ("null|none|text",), request({"texts": [None]})),
    ("lists as texts", ("text",), request({"texts": [["a", "b", "c", "d"]]})),
    ("an object of fields that are not there", ("text_a|colour",), request({"texts": [{"colour": "red"}]})),
    ("a text of bytes that are no UTF-8", ("json|utf-8",), request(b'{"texts": ["\xff"]}')),
    ("half an object", ("json",), request('{"texts": ["a phone"')),
    ("two objects", ("json",), request('{"texts": ["a"]}{"texts": ["b"]}')),
    ("a task by number", ("tasks", "string"), request({"texts": ["a phone"], "tasks": [1]})),
    ("PUT in place of POST", ("method",), request({"texts": ["a phone"]}, "/predict", "put")),
    ("a slash too many", ("not found|not allowed",), request({"texts": ["a phone"]}, "//predict")),
    ("a compressed body", ("json|encoding",), request(gzip.compress(b'{"texts": ["a phone"]}'))),
    ("a chat", ("texts", "expected"), request({"messages": [{"role": "user", "content": "hi"}]})),
    ("a text beyond all bounds", ("100|characters",), request({"texts": ["a " * 60_000]})),
]  # fmt: skip

KINDS = {
    "directories": DIRECTORIES,
    "settings": SETTINGS,
    "files": FILES,
    "machine": MACHINE,
    "commands": COMMANDS,
    "Python": PYTHON,
    "serve": SERVE,
}

if __name__ == "__main__":
    sys.exit(main(KINDS))
