"""What PaddlePALM 2.0.2 recorded of its training, and its parameters in our components."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import palm
from palm.pretrained.names import from_ours, to_ours

HEAD_NAMES = {
    "cls_out_w": "out.weight",
    "fc_0.w_0": "out.weight",
    "cls_out_b": "out.bias",
    "crfw": "crf.weight",
}


def arrays(file: Path, start: str) -> dict[str, Tensor]:
    with np.load(file, allow_pickle=False) as recorded:
        return {k.removeprefix(start): torch.from_numpy(recorded[k]) for k in recorded if k.startswith(start)}


def batch_of(file: Path, start: str) -> dict[str, Tensor]:
    batch = arrays(file, start)
    mask = batch["input_mask"].squeeze(-1).bool()
    return {**batch, "input_mask": mask, "word_mask": mask}


def load(parameters: dict[str, Tensor], backbone: nn.Module, **heads: nn.Module) -> None:
    """The recorded parameters into our components; a head's begin with its task's name."""
    own = {name: value for name, value in parameters.items() if name.split(".")[0] not in heads}
    backbone.load_state_dict(to_ours(own).weights)
    for task, head in heads.items():
        head.load_state_dict(head_parameters(parameters, task))


def head_parameters(parameters: dict[str, Tensor], task: str) -> dict[str, Tensor]:
    """A head's recorded parameters, by our names."""
    named = {
        k.removeprefix(f"{task}.").removeprefix(f"{task}."): v
        for k, v in parameters.items()
        if k.startswith(f"{task}.")
    }
    ours = {HEAD_NAMES[name]: value for name, value in named.items()}
    return {name: value.t() if name == "out.weight" else value for name, value in ours.items()}


def assert_near(
    parameters: dict[str, Tensor], backbone: nn.Module, head: nn.Module, task: str, atol: float
) -> None:
    """Every number of every parameter, but for the bias of attention keys, is near the recorded one."""
    ours, mine = from_ours(backbone.state_dict(), "paddlepalm"), head.state_dict()
    shared = {name: value for name, value in parameters.items() if name in ours}
    assert len(shared) == len(ours)
    for name, value in shared.items():
        if not name.endswith("key_fc.b_0"):
            torch.testing.assert_close(ours[name], value, rtol=0, atol=atol, msg=name)
    for name, value in head_parameters(parameters, task).items():
        torch.testing.assert_close(mine[name], value, rtol=0, atol=atol, msg=name)


def ernie(config: dict[str, Any]) -> Any:
    return palm.backbone.ERNIE.from_config({**config, "layer_norm_eps": 1e-6})
