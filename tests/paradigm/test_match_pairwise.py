"""Pairwise matching: training on a right and a wrong partner, prediction as a score, from file to file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import palm
from helpers import tiny
from helpers.reader_files import encoded, rng_of_row, write_text
from helpers.shared import RECORDED_0, RECORDED_2, needs_shared
from palm.backbone import ERNIE
from palm.paradigm import Match
from palm.pretrained.names import to_ours
from palm.reader import MatchReader

LATER = RECORDED_2
HEAD = {"cls_out_w_pr": "out.weight", "cls_out_b_pr": "out.bias"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_files(tmp_path)
    lines = [
        f"who owns the {thing}\t{name} has an old {thing}\t{name} has a new {thing}"
        for name in tiny.NAMES
        for thing in tiny.THINGS
    ]
    write_text(tmp_path, "pairs.tsv", "\n".join(["text_a\ttext_b\ttext_b_neg", *lines]) + "\n")
    return tmp_path


def recorded(name: str) -> dict[str, torch.Tensor]:
    with np.load(LATER / "match_pairwise" / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def both(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The recorded right and wrong pairs as one batch of ours."""
    width = max(value.shape[1] for value in inputs.values())
    parts = {}
    for name in ("token_ids", "position_ids", "segment_ids", "task_ids", "input_mask"):
        halves = [inputs[name], inputs[f"{name}_neg"]]
        halves = [half.squeeze(-1) if name == "input_mask" else half for half in halves]
        parts[name] = torch.cat(
            [torch.nn.functional.pad(half, (0, width - half.shape[1])) for half in halves]
        )
    rows = len(inputs["token_ids"])
    return {**parts, "input_mask": parts["input_mask"].bool(), "is_negative": torch.arange(2 * rows) >= rows}


@needs_shared
def test_scores_loss_and_gradients_equal_those_of_paddlepalm_2() -> None:
    params = {name.rpartition("match.")[2]: value for name, value in recorded("params").items()}
    golden = json.loads((LATER / "match_pairwise" / "golden.json").read_text(encoding="utf-8"))
    backbone = ERNIE(64, 2, 4, 120, 40, sent_type_vocab_size=4, layer_norm_eps=1e-6).eval()
    head_names = {name: HEAD[name.rpartition(".")[2]] for name in params if name.rpartition(".")[2] in HEAD}
    backbone.load_state_dict(
        to_ours({name: value for name, value in params.items() if name not in head_names}).weights
    )
    head = Match(2, 64, 0.0, 0.02, learning_strategy="pairwise", margin=golden["margin"]).eval()
    head.load_state_dict(
        {
            own: params[name].t() if params[name].dim() == 2 else params[name]
            for name, own in head_names.items()
        }
    )
    batch = both(recorded("inputs"))

    outputs = head(backbone(batch))
    loss = head.loss(outputs, batch)
    loss.backward()

    assert outputs["probs"][:, 0].tolist() == pytest.approx(golden["pos"] + golden["neg"], abs=2e-6)
    assert loss.item() == pytest.approx(golden["loss"], abs=2e-6)
    name = next(name for name in recorded("grads") if name.endswith("cls_out_w_pr"))
    gradient = head.out.weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient.t(), recorded("grads")[name], atol=2e-6, rtol=1e-4)


@needs_shared
def test_batches_equal_those_of_paddlepalm_2() -> None:
    recording = json.loads((LATER / "readers" / "readers.json").read_text(encoding="utf-8"))
    vocab = RECORDED_0 / "readers" / "data" / "vocab.txt"
    reader = MatchReader(vocab, 14, do_lower_case=True, learning_strategy="pairwise")
    rows = encoded(reader, LATER / "readers" / "pair.tsv", with_targets=True)
    for number, batch in enumerate(recording["match pairwise max_len14"]):
        ours = reader.collate(rows, [2 * number, 2 * number + 1], rng_of_row)
        for name in ("token_ids", "segment_ids", "position_ids", "task_ids"):
            assert ours[name].tolist() == batch[name] + batch[f"{name}_neg"], name


def test_the_rows_of_wrong_pairs_follow_those_of_right_ones(folder: Path) -> None:
    reader = MatchReader(folder / "vocab.txt", 24, learning_strategy="pairwise")
    path = write_text(folder, "one.tsv", "text_a\ttext_b\ttext_b_neg\nwho\tanna\tbert has a boat\n")
    batch = reader.collate(encoded(reader, path, with_targets=True), [0], rng_of_row)
    assert {name: batch[name].dtype for name in reader.targets_attr} == {"is_negative": torch.bool}
    assert batch["is_negative"].tolist() == [False, True]
    tokens = [" ".join(reader.tokenizer.tokens(row)) for row in batch["token_ids"]]
    assert tokens == ["[CLS] who [SEP] anna [SEP] [PAD] [PAD] [PAD]", "[CLS] who [SEP] bert has a boat [SEP]"]


def test_no_pairs_are_rows_with_the_columns_of_pairs(folder: Path) -> None:
    reader = MatchReader(folder / "vocab.txt", 16, learning_strategy="pairwise")
    some = reader.encode(list(reader.read(folder / "pairs.tsv", with_targets=True)), with_targets=True)
    none = reader.encode([], with_targets=True)
    assert (len(none), none.columns.keys()) == (0, some.columns.keys())


def test_the_dev_loss_is_that_of_the_pairs(folder: Path) -> None:
    pairs = str(folder / "pairs.tsv")
    files = {"train_file": pairs, "dev_file": pairs}
    how = {"learning_strategy": "pairwise", "margin": 0.4}
    config = {
        **{"task_instance": "t", "tasks": {"t": {"reader": "match", "paradigm": "match", **files, **how}}},
        **{"backbone": "bert", "backbone_config_path": str(folder / "backbone.json")},
        **{"vocab_path": str(folder / "vocab.txt"), "max_seq_len": 24, "batch_size": 5, "max_steps": 4},
        **{"save_path": str(folder / "out"), "learning_rate": 1e-3},
    }
    controller = palm.Controller(config, argv=[])
    controller.train()
    lines = (folder / "out" / "history.jsonl").read_text("utf-8").splitlines()
    evaluated = [line for line in map(json.loads, lines) if "dev_loss" in line][-1]
    model = palm.load_model(folder / "out" / "t" / "infer_model")
    rows = [line.split("\t") for line in (folder / "pairs.tsv").read_text("utf-8").splitlines()[1:]]
    right, wrong = (
        [each["probs"] for each in model.predict([(row[0], row[k]) for row in rows])] for k in (1, 2)
    )
    hinges = [max(0.0, 0.4 - one + other) for one, other in zip(right, wrong, strict=True)]
    assert evaluated["dev_loss"]["t"] == pytest.approx(sum(hinges) / len(hinges), abs=1e-5)
