"""AdamW on the rows of a table that have a gradient: the bits of its step on all of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers import article, tiny
from palm.controller import Controller
from palm.core.numerics import sparse_embedding as row_gradients
from palm.engine.training.loop import Training
from palm.optimizer import AdamW, clip
from palm.optimizer import sparse_adamw as row_steps

ROWS, WIDTH = 400, 64


def table() -> nn.Parameter:
    return nn.Parameter(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)))


def sparse_gradient(step: int, last_row: int) -> Tensor:
    """Of seven rows, one of them twice; the rows that are drawn grow with time."""
    draw = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(last_row, (7,), generator=draw)
    ids[3] = ids[5]
    values = torch.randn(7, WIDTH, generator=draw) / (1 + step % 3)
    return torch.sparse_coo_tensor(ids[None], values, (ROWS, WIDTH), check_invariants=True)


def bits(parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = optimizer.state[parameter]
    return [parameter.detach(), state["exp_avg"], state["exp_avg_sq"], state["step"]]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("last_row", [60, ROWS])
def test_gives_the_bits_of_dense_gradients(weight_decay: float, last_row: int) -> None:
    """Also where moments are dropped (step 50), gradients are dense, the table moves, a state is loaded."""
    by_rows, whole = table(), table()
    one, other = (AdamW(0.01, weight_decay).build([("table", p)]) for p in (by_rows, whole))
    for step in range(110):
        by_rows.grad = sparse_gradient(step, last_row)
        whole.grad = by_rows.grad.to_dense()
        if step in (20, 21, 90):
            by_rows.grad = whole.grad.clone()
        for optimizer in (one, other):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
            optimizer.step()
        assert step != 0 or by_rows.grad.is_sparse  # who looks at it after the step finds it there
        if step == 40:
            by_rows.data = by_rows.data.clone()
        if step == 60:
            state = copy.deepcopy(one.state_dict())
            one = AdamW(0.01, weight_decay).build([("table", by_rows)])
            one.load_state_dict(state)
        for here, there in zip(bits(by_rows, one), bits(whole, other), strict=True):
            assert torch.equal(here, there), step


def test_a_row_without_a_gradient_only_decays() -> None:
    """Rate 0.5 and decay 0.1 leave 0.95 of it; AdamW's first step moves the others by the rate."""
    parameter = nn.Parameter(torch.tensor([[4.0], [4.0], [4.0]]))
    optimizer = AdamW(0.5, weight_decay=0.1).build([("table", parameter)])
    parameter.grad = torch.sparse_coo_tensor([[1]], torch.tensor([[3.0]]), (3, 1), check_invariants=True)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([[3.8], [3.3], [3.8]]))


@pytest.mark.parametrize(("kind", "left"), [("global_norm", 0.6), ("norm", 1.0), ("value", 1.0)])
def test_clipping_counts_a_row_once_that_was_looked_up_twice(kind: str, left: float) -> None:
    """(1 + 2) in the table and 4 elsewhere: their norm is 5, which the limit makes 1."""
    looked_up, other = nn.Parameter(torch.zeros(9, 1)), nn.Parameter(torch.zeros(1))
    looked_up.grad = torch.sparse_coo_tensor(
        [[6, 6]], torch.tensor([[1.0], [2.0]]), (9, 1), check_invariants=True
    )
    other.grad = torch.tensor([4.0])
    assert clip([looked_up, other], 1.0, kind).item() == pytest.approx(5)  # type: ignore[arg-type]
    expected = torch.zeros(9, 1)
    expected[6] = left
    torch.testing.assert_close(looked_up.grad.to_dense(), expected)


@pytest.mark.parametrize("tasks", [("cls",), ("cls", "mlm")])
def test_a_run_has_the_bits_of_one_with_dense_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: tuple[str, ...]
) -> None:
    """Steps of a masked language model have a dense one: it compares with all words."""
    folder = article.write_files(tmp_path)
    backbone = json.loads((folder / "backbone.json").read_text(encoding="utf-8"))
    (folder / "backbone.json").write_text(json.dumps(backbone | {"hidden_size": 64}), encoding="utf-8")
    monkeypatch.setattr(row_steps, "MOST", 1.0)  # these texts have most of the few words there are
    runs: list[Training] = []
    for least in (0, 10**9):
        monkeypatch.setattr(row_gradients, "LEAST", least)
        run = Controller(tiny.config(folder, *tasks, weight_decay=0.01), argv=[]).training()
        was_sparse = []
        for _ in range(8):
            run.next_step()
            word = run.model.backbone.embeddings.word_table  # type: ignore[union-attr]
            was_sparse.append(word.grad.is_sparse)
        assert any(was_sparse) == (least == 0)
        assert all(was_sparse) == (least == 0 and tasks == ("cls",))
        runs.append(run)
    others = dict(runs[1].model.named_parameters())
    for name, parameter in runs[0].model.named_parameters():
        assert torch.equal(parameter, others[name]), name
