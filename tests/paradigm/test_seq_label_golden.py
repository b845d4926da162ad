"""The `seq_label` head gives PaddlePALM 2.0.2's loss and gradients, and the reader its tokens.

`golden/seqlabel.npz` was recorded by running it (paddlepaddle 1.8.5, CPU) on random ids: an ERNIE of 2
layers, and 5 classes. Of tensors above 500 numbers, gradients keep every 11th number of the flattened
tensor; those of the keys' biases, which are 0, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.golden_forward import sampled, theirs
from helpers.reader_files import write_text
from helpers.shared import GOLDEN, RECORDED_2, minilm, needs_shared
from palm.backbone import ERNIE, Backbone
from palm.paradigm import SequenceLabel
from palm.pretrained.names import to_ours
from palm.reader import SequenceLabelReader

HEAD = {"ner.ner.fc_0.w_0": "out.weight", "ner.cls_out_b": "out.bias", "ner.crfw": "crf.weight"}


def recorded(part: str) -> dict[str, Tensor]:
    """One part of the recording, `in`, `param`, `out` or `grad`; ids as int64."""
    with np.load(GOLDEN / "seqlabel.npz", allow_pickle=False) as file:
        tensors = {
            key.removeprefix(f"{part}/"): torch.from_numpy(file[key])
            for key in file.files
            if key.startswith(f"{part}/")
        }
    return {key: value.long() if value.dtype == torch.int16 else value for key, value in tensors.items()}


def whole_gradients(names: Iterable[str]) -> dict[str, Tensor]:
    """The gradients of these names as they were recorded, where that is at hand."""
    path = RECORDED_2 / "ernie_seqlabel" / "grads.npz"
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in names}


def batch_of_the_original() -> dict[str, Tensor]:
    """The recorded batch; there, every token counts as a word, `[CLS]` and `[SEP]` too."""
    batch = recorded("in")
    mask = batch["input_mask"].squeeze(-1).bool()
    return {**batch, "input_mask": mask, "word_mask": mask}


def model_of_the_original() -> tuple[Backbone, SequenceLabel]:
    params = recorded("param")
    backbone = ERNIE(64, 2, 4, 120, 40, sent_type_vocab_size=4, layer_norm_eps=1e-6)
    backbone.load_state_dict(
        to_ours({name: value for name, value in params.items() if name not in HEAD}).weights
    )
    head = SequenceLabel(5, 64, dropout_prob=0.0, use_crf=True)
    tensors = {ours: params[name] for name, ours in HEAD.items()}
    head.load_state_dict({**tensors, "out.weight": tensors["out.weight"].t()})
    return backbone.eval(), head.eval()


def test_emissions_loss_and_gradients_equal_the_originals() -> None:
    batch, (backbone, head) = batch_of_the_original(), model_of_the_original()
    outputs, original = head({**batch, **backbone(batch)}), recorded("out")
    real = batch["input_mask"]
    torch.testing.assert_close(outputs["logits"][real], original["emission"][real], atol=2e-6, rtol=0)

    loss = head.loss(outputs, batch)
    loss.backward()
    assert loss.item() == pytest.approx(original["loss"].item(), abs=5e-6)
    gradients = recorded("grad") | whole_gradients(recorded("grad"))
    assert set(gradients) >= set(HEAD)
    for name, gradient in gradients.items():
        if name in HEAD:
            ours = head.get_parameter(HEAD[name]).grad
            assert ours is not None
            ours = ours.t() if name.endswith("w_0") else ours
        else:
            (own_name,) = to_ours({name: torch.zeros(1, 1)}).weights
            ours = theirs(backbone, own_name)
        torch.testing.assert_close(sampled(ours, gradient), gradient, atol=5e-6, rtol=1e-4, msg=name)


def test_likelihoods_and_best_paths_equal_the_originals() -> None:
    batch, (_, head), original = batch_of_the_original(), model_of_the_original(), recorded("out")
    assert head.crf is not None
    nll = head.crf.negative_log_likelihood(original["emission"], batch["label_ids"], batch["word_mask"])
    torch.testing.assert_close(nll, original["crf_nll_per_seq"], atol=5e-6, rtol=0)

    outputs = {"logits": original["emission"], "word_mask": batch["word_mask"]}
    paths = [value["labels"] for value in head.decode(outputs)]
    lengths = batch["seq_lens"].tolist()
    assert lengths == [12, 5, 9, 3]
    assert paths == [
        row[:length].tolist() for row, length in zip(original["viterbi_path"], lengths, strict=True)
    ]


def test_without_the_crf_the_labels_are_the_originals_predictions() -> None:
    batch, original = batch_of_the_original(), recorded("out")
    outputs = {"logits": original["emission"], "word_mask": batch["word_mask"]}
    best = [value["labels"] for value in SequenceLabel(5, 64).decode(outputs)]
    mask = batch["word_mask"]
    assert best == [row[real].tolist() for row, real in zip(original["pred_argmax"], mask, strict=True)]


@needs_shared
@pytest.mark.parametrize("lower", [True, False])
def test_tokens_and_labels_of_first_pieces_equal_the_originals(lower: bool, tmp_path) -> None:
    folder = RECORDED_2 / "seqlabel_reader"
    text = (folder / "data.tsv").read_text(encoding="utf-8")
    # A label outside of the map is "O" in the original, an error here.
    path = write_text(tmp_path, "data.tsv", text.replace("B-MISC", "O"))
    reader = SequenceLabelReader(minilm() / "vocab.txt", 32, folder / "label_map.json", do_lower_case=lower)
    examples = list(reader.read(path, with_targets=True))
    rows = reader.encode(examples, with_targets=True)
    sentences = json.loads((folder / "reader.json").read_text("utf-8"))[f"records lower={lower} max_len=32"]
    assert len(examples) == len(sentences) == 20
    assert len(rows) == 20 + 3  # 40 words of 3 pieces and more need four windows of 30
    firsts = [rows["example"].values.tolist().index(number) for number in range(20)]
    for row, example, sentence in zip(firsts, examples, sentences, strict=True):
        ids, starts = rows["token_ids"][row].tolist(), rows["word_starts"][row].tolist()
        labels = dict(zip(starts, rows["label_ids"][row].tolist(), strict=True))
        if "\u200b" in example.words:  # the original drops a word without pieces; here it is [UNK]
            assert [ids[2], labels.pop(2)] == [100, 6]
            del ids[2]
            labels = {1: labels[1], 2: labels[3]}
        assert ids == sentence["token_ids"]
        assert labels == {start: sentence["label_ids"][start] for start in labels}
