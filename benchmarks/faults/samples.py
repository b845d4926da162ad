"""A small valid sample of everything that palm reads, and what is read of it: its fingerprint."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor

import palm
from palm.backbone import BERT
from palm.config import read_config
from palm.controller.controller import Controller
from palm.controller.plan import plan
from palm.core.files import manifest as storage
from palm.core.files.fs import WRITTEN
from palm.export.sources import tasks_of_run
from palm.paradigm import Classify
from palm.predict.inference import InferenceModel
from palm.pretrained import from_ours, read_weights
from palm.reader import ClassifyReader, MRCReader, SequenceLabelReader
from palm.reader.text.labels import Labels
from palm.reader.text.tokenizer import load_tokenizer
from palm.train.checkpoint import newest_checkpoint, save_checkpoint

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, "red", "blue", "grey", "##en", "door", "boat", "a", "the", "is", "what", "colour", "."]
TEXTS = ["a red door .", "the boat is blue", "what colour is the grey DOOR ?", "漢字 café"]
SIZES = {
    **{"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(WORDS)},
    **{"max_position_embeddings": 16, "intermediate_size": 4},
}


@dataclass(frozen=True)
class Sample:
    """One format.

    Args:
        name: of the format.
        file: that is damaged.
        read: reads the file, or the directory that it lies in, and gives what came out as values.
        mend: makes checksums match the damaged file again, as somebody does who writes one.
        is_covered: whether a checksum covers all that the file says, so that nothing else may come out.
        clean: undoes what reading the damaged file has changed around it.
    """

    name: str
    file: Path
    read: Callable[[], Any]
    mend: Callable[[], None] = lambda: None
    is_covered: bool = False
    clean: Callable[[], None] = lambda: None


def fingerprint(value: Any) -> str:
    """A hash of plain values, tensors and arrays."""
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterable[bytes]:
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        if value.device.type != "meta":
            yield value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item)
        yield b"|"
    else:
        yield repr(value).encode("utf-8", "surrogatepass")


def samples(folder: Path) -> list[Sample]:
    """All samples, written below `folder`."""
    torch.manual_seed(0)
    encoder = BERT(**SIZES)  # type: ignore[arg-type]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return [
        *_weights(folder, encoder),
        *_vocabularies(folder),
        *_directories(folder, encoder, vocabulary),
        *_texts(folder, vocabulary),
    ]


# ---- Weights ----


def _weights(folder: Path, encoder: BERT) -> Iterable[Sample]:
    hugging_face, paddle = (
        {name: value.contiguous() for name, value in from_ours(encoder.state_dict(), layout).items()}
        for layout in ("huggingface", "paddlepalm")  # type: ignore[attr-defined]
    )
    place = _folder(folder, "safetensors")
    save_file(hugging_face, place / "model.safetensors")
    yield _of_weights("safetensors", place / "model.safetensors")
    for name, is_zip in (("bin", True), ("bin before torch 1.6", False)):
        place = _folder(folder, name)
        torch.save(hugging_face, place / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
        yield _of_weights(name, place / "pytorch_model.bin")
    place = _folder(folder, "shards")
    yield _of_weights("index of shards", _shards(place, hugging_face))
    place = _folder(folder, "fluid")
    _variables(place, paddle)
    yield _of_weights("Fluid's variable", place / "word_embedding", place)
    packed = _folder(folder, "packed") / "__palmmodel__"
    with tarfile.open(packed, "w:gz") as tar:
        for file in sorted(place.iterdir()):
            tar.add(file, file.name)
    yield _of_weights("__palmmodel__", packed)
    for protocol in (2, 4):
        file = _folder(folder, f"paddle{protocol}") / "model_state.pdparams"
        file.write_bytes(pickle.dumps({name: value.numpy() for name, value in paddle.items()}, protocol))
        yield _of_weights(f"pdparams, protocol {protocol}", file)


def _of_weights(name: str, file: Path, path: Path | None = None, is_covered: bool = False) -> Sample:
    path = path or file
    return Sample(
        name, file, lambda: [read_weights(path, headers=True), read_weights(path)], is_covered=is_covered
    )


def _shards(folder: Path, weights: Mapping[str, Tensor]) -> Path:
    names = sorted(weights)
    index = {}
    for number, part in enumerate((names[::2], names[1::2])):
        shard = f"model-{number}.safetensors"
        save_file({name: weights[name] for name in part}, folder / shard)
        index |= dict.fromkeys(part, shard)
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}), encoding="utf-8")
    return file


def _variables(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        described = b"\x08\x05" + b"".join(b"\x10" + _varint(size) for size in value.shape)
        header = struct.pack("<IQIi", 0, 0, 0, len(described))
        (folder / name).write_bytes(header + described + value.contiguous().numpy().tobytes())


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7) if number >> 7 else bytes([number])


# ---- Vocabularies ----


def _vocabularies(folder: Path) -> Iterable[Sample]:
    place = _folder(folder, "wordpiece")
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    yield _of_tokenizer("vocab.txt", place / "vocab.txt")
    place = _folder(folder, "numbered")
    lines = [f"{word}\t{number}" for number, word in enumerate(WORDS)]
    (place / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    yield _of_tokenizer("vocab.txt with ids", place / "vocab.txt")
    place = _folder(folder, "byte_level")
    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefghijklmnopqrstuvwxyzĠ.?", "re", "red", "Ġa"]
    ids = {token: number for number, token in enumerate(letters)}
    (place / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\nr e\nre d\nĠ a\n", encoding="utf-8")
    (place / "tokenizer_config.json").write_text('{"add_prefix_space": true}', encoding="utf-8")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        yield _of_tokenizer(f"RoBERTa's {name}", place / name, place / "vocab.json")
    for kind, pipeline in _pipelines().items():
        file = _folder(folder, f"pipeline {kind}") / "tokenizer.json"
        pipeline.save(str(file))
        yield _of_tokenizer(f"tokenizer.json, {kind}", file)


def _pipelines() -> dict[str, tokenizers.Tokenizer]:
    pieces = [
        (token, -float(number)) for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ]
    pieces += [(token, -9.0) for token in ("▁red", "▁door", "▁a", "▁", *"abcdeo")]
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 3, False))
    unigram.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    unigram.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    unigram.add_special_tokens([token for token, _ in pieces[:5]])
    ids = {token: number for number, token in enumerate(WORDS)}
    word_piece = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    word_piece.normalizer = tokenizers.normalizers.BertNormalizer()
    word_piece.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    word_piece.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    word_piece.add_special_tokens(SPECIAL)
    return {"Unigram": unigram, "WordPiece": word_piece}


def _of_tokenizer(name: str, file: Path, vocabulary: Path | None = None) -> Sample:
    def read() -> Any:
        tokenizer = load_tokenizer(vocabulary or file)
        cut = tokenizer.encode_with_offsets(TEXTS)
        return [tokenizer.vocab_size, tokenizer.encode(TEXTS), [[p.ids, p.starts, p.ends] for p in cut]]

    return Sample(name, file, read)


# ---- Directories ----


def _directories(folder: Path, encoder: BERT, vocabulary: Path) -> Iterable[Sample]:
    place = _folder(folder, "hugging face")
    weights = from_ours(encoder.state_dict(), "huggingface")
    save_file({name: value.contiguous() for name, value in weights.items()}, place / "model.safetensors")
    told = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "type_vocab_size": 2}
    (place / "config.json").write_text(json.dumps({**SIZES, **told}, indent=1), encoding="utf-8")
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    yield Sample("config.json of weights", place / "config.json", lambda: _of_directory(place))

    model = folder / "model"
    reader = ClassifyReader(vocabulary, 12, label_map={"red": 0, "blue": 1})
    InferenceModel("colour", reader, encoder, Classify(2, 4)).save(model)
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        yield Sample(f"saved {name}", model / name, lambda: _of_model(model), is_covered=True)
    yield Sample("manifest.json", model / storage.MANIFEST, lambda: _of_model(model), is_covered=True)
    forged = folder / "forged"
    InferenceModel("colour", reader, encoder, Classify(2, 4)).save(forged)
    file = forged / "config.json"
    yield Sample("saved config.json, sealed anew", file, lambda: _of_model(forged), lambda: seal(forged))

    checkpoint = _checkpoint(folder)
    file = checkpoint / "state.json"
    yield Sample("state.json", file, lambda: _of_checkpoint(checkpoint), is_covered=True)
    again = _checkpoint(_folder(folder, "again"))
    file = again / "state.json"
    yield Sample("state.json, sealed anew", file, lambda: _of_checkpoint(again), lambda: seal(again))


def seal(folder: Path) -> None:
    """Write the manifest of a directory anew, as if it were a new directory."""
    (folder / storage.MANIFEST).unlink()
    (folder / WRITTEN).unlink(missing_ok=True)
    storage.seal(folder)


def _of_directory(folder: Path) -> Any:
    facts = palm.inspect_directory(folder)
    backbone = palm.load_backbone(folder)
    return [{**facts, "files": None}, backbone.settings, backbone.state_dict()]


def _of_model(folder: Path) -> Any:
    model = palm.load_model(folder, precision="fp32")
    settings = {name: value for name, value in model.reader.settings.items() if name != "vocab_path"}
    return [settings, model.backbone.state_dict(), model.head.state_dict(), model.predict(TEXTS)]


def _checkpoint(folder: Path) -> Path:
    config = folder / "run.yaml"
    _write_run(folder)
    controller = Controller(config, argv=[])
    training = controller.training()
    save_checkpoint(training, folder / "out" / "step_1")
    return folder / "out" / "step_1"


def _of_checkpoint(folder: Path) -> Any:
    if newest_checkpoint(folder.parent) is None:
        raise palm.PalmError("passed over, with a warning")
    found = tasks_of_run(folder)
    return [[task.head.state_dict(), task.backbone.state_dict()] for task in found]


# ---- Text ----


def _write_run(folder: Path) -> None:
    """A run in files: YAML of the run and of a task, the backbone's JSON, data."""
    rows = ["label\ttext_a", *(f"{k % 2}\t{TEXTS[k % 4]}" for k in range(8))]
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "backbone.json").write_text(json.dumps(SIZES, indent=1), encoding="utf-8")
    (folder / "run.yaml").write_text(
        "task_instance: colour\nsave_path: out\nbackbone: bert\nbackbone_config_path: backbone.json\n"
        "vocab_path: vocab.txt\nmax_seq_len: 12\nbatch_size: 2\nnum_epochs: 1\nlearning_rate: 3e-5\n"
        "weight_decay: &d 0.01\ndropout_prob: *d\nuse_ema: no\n",
        encoding="utf-8",
    )
    (folder / "colour.yaml").write_text(
        "train_file: train.tsv\nreader: cls\nparadigm: cls\nn_classes: 2\n", encoding="utf-8"
    )


def _texts(folder: Path, vocabulary: Path) -> Iterable[Sample]:
    place = _folder(folder, "run")
    _write_run(place)
    for title, name in (
        ("YAML", "run.yaml"),
        ("task's YAML", "colour.yaml"),
        ("backbone's JSON", "backbone.json"),
    ):
        yield Sample(title, place / name, lambda: _of_run(place))
    labels = folder / "labels.json"
    labels.write_text(json.dumps({"red": 0, "blue": 1, "grün": 2}, indent=1), encoding="utf-8")
    yield Sample("label_map", labels, lambda: Labels(3, labels).names)
    data = folder / "cls.tsv"
    rows = [f"{k % 3}\t{TEXTS[k % 4]}\t{TEXTS[(k + 1) % 4]}" for k in range(20)]
    data.write_text("\n".join(["label\ttext_a\ttext_b", *rows]) + "\n", encoding="utf-8")
    reader = ClassifyReader(vocabulary, 12, n_classes=3)
    yield Sample("TSV", data, lambda: _rows(reader, data))
    squad = folder / "squad.json"
    squad.write_text(json.dumps(_questions(), indent=1), encoding="utf-8")
    questions = MRCReader(vocabulary, 16, max_query_len=6, doc_stride=4)
    yield Sample("SQuAD JSON", squad, lambda: _rows(questions, squad))
    slots = folder / "slots.tsv"
    words = "\2".join(TEXTS[0].split())
    slots.write_text("text_a\tlabel\n" + f"{words}\tO\2B\2O\2O\n" * 5, encoding="utf-8")
    tagger = SequenceLabelReader(vocabulary, 12, label_map={"O": 0, "B": 1})
    yield Sample("TSV of words", slots, lambda: _rows(tagger, slots))


def _of_run(folder: Path) -> Any:
    config = read_config(folder / "run.yaml", argv=[])
    planned = plan(config, for_train=True)
    return [config.resolved(), repr(planned)]


def _rows(reader: Any, file: Path) -> Any:
    rows = reader.encode(list(reader.read(file, with_targets=True)), with_targets=True)
    batch = reader.collate(rows, range(len(rows)), lambda _: np.random.default_rng(0)) if len(rows) else {}
    return [rows.lengths, batch]


def _questions() -> dict[str, Any]:
    paragraphs = []
    for number in range(3):
        asked = {"id": f"q{number}", "question": "what colour is the door"}
        answers = [{"text": "red", "answer_start": 2}]
        paragraphs.append({"context": TEXTS[0], "qas": [{**asked, "answers": answers}]})
    return {"version": "1.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


def _folder(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    return place
