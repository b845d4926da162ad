"""What a GPU needs is found on the CPU before, and is the same; what could be seen of it without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.components import encoder_inputs
from palm.backbone import BERT
from palm.backbone.packing import layout_of
from palm.core.errors import WiringError
from palm.paradigm import Match, SequenceLabel
from palm.paradigm.seq_label import words_first
from palm.train.checkpoint import optimizer_tensors, restore_optimizer
from palm.train.loop import placed

MASK = torch.arange(6) < torch.tensor([[4], [6], [1]])


def test_a_batch_with_its_layout_gives_the_outputs_of_one_without() -> None:
    torch.manual_seed(0)
    encoder = BERT(16, 2, 2, 20, 8).eval()
    batch = encoder_inputs(torch.randint(20, MASK.shape), MASK)
    expected, given = encoder(batch), encoder({**batch, **layout_of(MASK)})
    assert all(torch.equal(expected[name], given[name]) for name in expected)
    assert placed(batch, torch.device("cpu"), encoder).keys() == batch.keys()


def test_a_row_that_begins_with_padding_is_refused_before_it_goes_anywhere() -> None:
    with pytest.raises(WiringError, match="row 1 "):
        layout_of(torch.tensor([[True, True], [False, True]]))


def test_counters_go_where_a_fused_kernel_reads_them() -> None:
    there, here = (nn.Parameter(torch.zeros(3, device=device)) for device in ("meta", "cpu"))
    optimizer = torch.optim.SGD([{"params": [there], "fused": True}, {"params": [here]}])
    names = {"there": there, "here": here}
    saved = {f"{name}/{key}": value for name in names for key, value in {"step": torch.tensor(7.0)}.items()}
    restore_optimizer(optimizer, names, {**saved, "there/exp_avg": torch.ones(3)})
    state = optimizer.state[there]
    assert (state["step"].device.type, state["exp_avg"].device.type) == ("meta", "meta")
    assert optimizer.state[here]["step"].item() == 7
    restored = optimizer_tensors(optimizer, names)
    assert restored.keys() == {"there/step", "there/exp_avg", "here/step"}


def test_words_that_are_not_counted_give_the_same_loss_and_the_same_gradient() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 6, 5, generator=generator, requires_grad=True)
    labels, mask = torch.randint(5, (3, 6), generator=generator), MASK & (torch.arange(6) != 2)
    picked = nn.functional.cross_entropy(logits[mask], labels[mask])
    whole = SequenceLabel(5, 8).loss({"logits": logits, "word_mask": mask}, {"label_ids": labels})
    torch.testing.assert_close(whole, picked)
    assert torch.equal(*(torch.autograd.grad(loss, logits)[0] for loss in (whole, picked)))


def test_words_come_first_in_order_with_zeros_behind() -> None:
    values = torch.arange(1.0, 13).view(2, 3, 2)
    front, words = words_first(values, torch.tensor([[False, True, True], [True, False, False]]))
    assert front.tolist() == [[[3, 4], [5, 6]], [[7, 8], [0, 0]]]
    assert words.tolist() == [[True, True], [True, False]]


def test_wrong_pairs_are_compared_with_the_right_ones_in_order() -> None:
    scores = torch.tensor([[0.9], [0.2], [0.6], [0.5]])
    wrong = torch.tensor([False, True, False, True])
    loss = Match(hidden_size=4, learning_strategy="pairwise", margin=0.5).loss(
        {"probs": scores}, {"is_negative": wrong}
    )
    assert loss.item() == pytest.approx((0.0 + 0.4) / 2)  # 0.5 - 0.9 + 0.2 < 0, 0.5 - 0.6 + 0.5
