"""The four heads give PaddlePALM's losses and gradients, and decode what was worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers.golden_forward import (
    CASES,
    HEAD_KINDS,
    HEAD_NAMES,
    arrays,
    backbone_of,
    batch_of,
    head_of,
    sampled,
    theirs,
)
from helpers.shared import RECORDED_2, needs_shared
from palm.backbone import BERT, ERNIE
from palm.core.errors import WiringError
from palm.paradigm import MRC, Classify, Head, MaskLM, Match
from palm.pretrained.names import to_ours


@pytest.mark.parametrize("kind_of_head", HEAD_KINDS)
@pytest.mark.parametrize(("kind", "lengths"), CASES)
def test_predictions_losses_and_gradients_equal_the_originals(
    kind: str, lengths: str, kind_of_head: str
) -> None:
    recorded = {
        key.removeprefix(f"{kind_of_head}/"): value
        for key, value in arrays(f"{kind}_{lengths}.npz").items()
        if key.startswith(f"{kind_of_head}/")
    }
    batch, backbone, head = (
        batch_of(kind, lengths, kind_of_head),
        backbone_of(kind).eval(),
        head_of(kind, kind_of_head),
    )
    outputs = head({**batch, **backbone(batch)})
    real = batch["input_mask"]
    for key in [key for key in recorded if key.startswith("pred/")]:
        ours, original = outputs[key.removeprefix("pred/")], recorded[key]
        if kind_of_head == "mrc":
            ours, original = ours[real], original[real]
        torch.testing.assert_close(ours, original, atol=1e-6, rtol=0)
    if kind_of_head == "mrc" and lengths == "ragged":
        return  # the original's softmax counts padding

    loss = head.loss(outputs, batch)
    loss.backward()
    assert loss.item() == pytest.approx(recorded["out/loss"].item(), abs=1e-6)
    for key in [key for key in recorded if key.startswith("grad/")]:
        name = key.removeprefix("grad/")
        if name in HEAD_NAMES:
            gradient = theirs(head, HEAD_NAMES[name])
        else:
            (own_name,) = to_ours({name: torch.zeros(1, 1)}).weights
            gradient = theirs(backbone, own_name)
        ours = sampled(gradient, recorded[key])
        torch.testing.assert_close(ours, recorded[key], atol=5e-7, rtol=1e-5, msg=name)


@needs_shared
@pytest.mark.parametrize("kind_of_head", ["bertcls", "cls", "match", "mrc", "mlm"])
def test_predictions_and_losses_equal_those_of_paddlepalm_2(kind_of_head: str) -> None:
    folder = RECORDED_2 / "extra_heads"
    batch = {name: torch.from_numpy(value) for name, value in np.load(folder / "inputs.npz").items()}
    batch["input_mask"] = batch["input_mask"].squeeze(-1).bool()
    params = {
        name: torch.from_numpy(value)
        for name, value in np.load(folder / f"{kind_of_head}_params.npz").items()
    }
    sizes = {"layer_norm_eps": 1e-6, "initializer_range": 0.02}
    backbone: BERT | ERNIE = ERNIE(64, 2, 4, 120, 40, sent_type_vocab_size=4, **sizes)
    if kind_of_head == "bertcls":
        backbone = BERT(64, 2, 4, 120, 40, type_vocab_size=params["sent_embedding"].shape[0], **sizes)
    own = {name: value for name, value in params.items() if not name.startswith(f"{kind_of_head}.")}
    backbone.load_state_dict(to_ours(own).weights)
    head: Head = {
        "mrc": lambda: MRC(hidden_size=64),
        "mlm": lambda: MaskLM(64, 120, "gelu", layer_norm_eps=1e-6),
        "match": lambda: Match(3, 64),
    }.get(kind_of_head, lambda: Classify(3, 64))()
    tensors = {
        HEAD_NAMES[name.removeprefix(f"{kind_of_head}.")]: params[name] for name in params if name not in own
    }
    head.load_state_dict({name: value.t() if value.dim() == 2 else value for name, value in tensors.items()})

    outputs = head.eval()({**batch, **backbone.eval()(batch)})
    recorded = np.load(folder / f"{kind_of_head}_outputs.npz")
    real = batch["input_mask"]
    for name in {"start_logits", "end_logits", "logits"} & set(outputs):
        ours, original = outputs[name], torch.from_numpy(recorded[f"pred.{name}"])
        kept = {"mrc": real, "mlm": real.flatten()[batch["mask_pos"]]}.get(
            kind_of_head
        )  # one mask is on padding
        ours, original = (ours, original) if kept is None else (ours[kept], original[kept])
        torch.testing.assert_close(ours, original, atol=2e-6, rtol=0)
    if kind_of_head in (
        "bertcls",
        "cls",
        "match",
    ):  # the original's mrc counts padding, its mlm reads position 0
        assert head.loss(outputs, batch).item() == pytest.approx(recorded["loss"].item(), abs=2e-6)


def test_cls_decodes_to_the_likeliest_label_with_all_logits_and_probabilities() -> None:
    logits = torch.log(torch.tensor([[1.0, 3.0, 4.0], [2.0, 2.0, 1.0]]))
    first, second = Classify(3, 4).decode({"logits": logits, "probs": logits.softmax(-1)})
    assert first["label"] == 2
    assert first["logits"] == logits[0].tolist()
    assert first["probs"] == pytest.approx([1 / 8, 3 / 8, 4 / 8])
    assert second["label"] == 0  # a tie goes to the lower label
    json.dumps([first, second])


def test_a_label_that_is_not_a_class_is_named() -> None:
    logits, labels = torch.zeros(3, 2), torch.tensor([0, 5, 2])
    with pytest.raises(WiringError, match=r"label_ids: \[2, 5\] are outside 0\.\.1; n_classes is 2"):
        Match().loss({"logits": logits}, {"label_ids": labels})


def test_the_mrc_loss_is_over_real_tokens_only() -> None:
    head = MRC(hidden_size=2)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    outputs = head({"encoder_outputs": torch.zeros(2, 3, 2), "input_mask": mask})
    targets = {"start_positions": torch.tensor([0, 1]), "end_positions": torch.tensor([1, 2])}
    expected = (math.log(2) + math.log(3)) / 2  # all logits are equal: 2 and 3 real tokens to choose from
    assert head.loss(outputs, targets).item() == pytest.approx(expected)


def spans(
    start: list[float], end: list[float], mask: list[bool] | None = None, **settings: int
) -> list[tuple]:
    head = MRC(hidden_size=2, **settings)
    real = torch.tensor([mask or [True] * len(start)])
    logits = torch.tensor([[start, end]]).masked_fill(~real[:, None], -1e9)
    (decoded,) = head.decode({"start_logits": logits[:, 0], "end_logits": logits[:, 1]})
    assert decoded["null_score"] == start[0] + end[0]
    return decoded["spans"]


def test_mrc_never_answers_with_padding() -> None:
    found = spans([0.0, 1.0, 7.0], [0.0, 1.0, 7.0], [True, True, False])
    assert {position for start, end, *_ in found for position in (start, end)} == {0, 1}


def test_mrc_spans_equal_those_of_a_plain_search() -> None:
    torch.manual_seed(0)
    start, end = torch.randn(2, 4, 30).round(decimals=1)  # rounded, so that there are ties
    decoded = MRC(hidden_size=2, n_best_size=7, max_answer_len=9).decode(
        {"start_logits": start, "end_logits": end}
    )
    for row in range(4):
        best = [
            sorted(range(30), key=lambda position, logits=logits: -logits[row, position])[:7]
            for logits in (start, end)
        ]
        expected = [
            (s, e, start[row, s].item(), end[row, e].item())
            for s in best[0]
            for e in best[1]
            if 0 <= e - s < 9
        ]
        assert decoded[row]["spans"] == expected


def test_mlm_reads_masked_positions_and_shares_the_word_table() -> None:
    torch.manual_seed(0)
    head, table = MaskLM(4, 6), torch.randn(6, 4, requires_grad=True)
    tokens = torch.randn(2, 3, 4)
    places = {"mask_pos": torch.tensor([1, 2, 5]), "input_mask": torch.ones(2, 3, dtype=torch.bool)}
    outputs = head({"encoder_outputs": tokens, "embedding_table": table, **places})
    hidden = torch.stack([tokens[0, 1], tokens[0, 2], tokens[1, 2]])
    hidden = F.gelu(hidden @ head.transform.weight.t())
    centred = hidden - hidden.mean(1, keepdim=True)
    expected = centred / centred.square().mean(1, keepdim=True).sqrt() @ table.t()
    torch.testing.assert_close(outputs["logits"], expected, atol=1e-5, rtol=1e-5)
    head.loss(outputs, {"mask_label": torch.tensor([0, 1, 2])}).backward()
    assert table.grad is not None
    assert table.grad.abs().sum() > 0
