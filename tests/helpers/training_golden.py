"""PaddlePALM 0.2.1's own training of a tiny BERT, 20 steps, and the same training with our parts.

`golden/optimizer.npz` is made of `0.2.1/optimizer` of the recorded material: the batches and first
parameters whole; loss, rate and gradient norm of every step; and of the parameters after steps 1, 2,
5, 10 and 20 some 64 numbers each, spread evenly. Names and orientation are the original's. Whole
tensors are compared where the recorded material is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from helpers.shared import GOLDEN, RECORDED_0
from palm.backbone import BERT
from palm.optimizer import AdamW, clip
from palm.paradigm import Classify
from palm.pretrained.names import from_ours, to_ours

RECORDED = np.load(GOLDEN / "optimizer.npz")
FIELDS = ("token_ids", "position_ids", "segment_ids", "input_mask", "label_ids")
SMALL = 0.26666667
"""What the run `nowarmup_smallgrad` multiplies the first weights by."""


def first_parameters(scale: float) -> dict[str, Tensor]:
    arrays = {name[7:]: torch.from_numpy(RECORDED[name]) for name in RECORDED if name.startswith("param0/")}
    return {name: value * scale if value.ndim > 1 else value for name, value in arrays.items()}


def tiny_model(scale: float = 1.0) -> nn.ModuleDict:
    first = first_parameters(scale)
    no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    encoder = BERT(32, 2, 4, 500, 64, **no_dropout, layer_norm_eps=1e-6)
    model = nn.ModuleDict({"backbone": encoder, "head": Classify(4, 32, dropout_prob=0.0)})
    model["backbone"].load_state_dict(to_ours(first).weights)
    model["head"].load_state_dict({"out.weight": first["t/cls_out_w"].T, "out.bias": first["t/cls_out_b"]})
    return model


def batch(step: int) -> dict[str, Tensor]:
    recorded = {name: torch.from_numpy(RECORDED[f"in/{step}/{name}"]) for name in FIELDS}
    return {name: value if name == "input_mask" else value.long() for name, value in recorded.items()}


def training(model: nn.ModuleDict, run: str, weight_decay: float, hat: bool) -> Iterator[tuple[float, float]]:
    """Loss and gradient norm of each step of a run, after the step.

    Args:
        hat: put epsilon where the original has it, in Kingma's "epsilon-hat" place.
    """
    optimizer = AdamW(1e-3, weight_decay, epsilon_hat=hat).build(model.named_parameters())
    for step, rate in enumerate(RECORDED[f"{run}/lr"]):
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        inputs = batch(step)
        optimizer.zero_grad()
        loss = model["head"].loss(model["head"](model["backbone"](inputs)), inputs)
        loss.backward()
        norm = clip(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item(), norm.item()


def by_their_names(model: nn.ModuleDict) -> dict[str, Tensor]:
    """The parameters under the original's names, in its orientation."""
    head = model["head"].state_dict()
    ours = from_ours(model["backbone"].state_dict(), "paddlepalm")
    return ours | {"t/cls_out_w": head["out.weight"].T, "t/cls_out_b": head["out.bias"]}


def recorded_whole(run: str, part: str) -> dict[str, np.ndarray]:
    """Every number of every parameter from the recorded material itself, but for the bias of attention keys.

    Args:
        run: the name of a recorded run.
        part: `param20`, for instance, or `ema_applied20`.
    """
    with np.load(RECORDED_0 / "optimizer" / f"{run}.npz", allow_pickle=False) as recorded:
        return {
            name.removeprefix(f"{part}/").removeprefix("__paddlepalm_"): recorded[name]
            for name in recorded
            if name.startswith(f"{part}/") and not name.endswith("key_fc.b_0")
        }


def assert_whole(model: nn.ModuleDict, run: str, part: str, atol: float) -> None:
    """The model's parameters are near the recorded ones, in every number."""
    ours, theirs = by_their_names(model), recorded_whole(run, part)
    assert {name for name in ours if not name.endswith("key_fc.b_0")} == set(theirs)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name].numpy(), value, rtol=0, atol=atol, err_msg=name)


def differences(model: nn.ModuleDict, recorded: str) -> dict[str, float]:
    """Largest difference of each parameter to the recorded ones, by the original's names.

    The bias of attention keys has a gradient of zero, and moves by rounding errors alone: left out.
    """
    found = {}
    for name, value in by_their_names(model).items():
        if not name.endswith("key_fc.b_0"):
            some = value.reshape(-1)[:: max(1, value.numel() // 64)].numpy()
            found[name] = float(np.abs(some - RECORDED[f"{recorded}/{name}"]).max())
    return found
