"""The recorded passes of PaddlePALM 0.2.1 in `tests/golden/forward`, as our components take them."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.shared import GOLDEN, RECORDED_0
from palm.backbone import BERT, ERNIE, Backbone
from palm.paradigm import MRC, Classify, Head, MaskLM, Match
from palm.pretrained.names import to_ours

FOLDER = GOLDEN / "forward"
CASES = [(backbone, lengths) for backbone in ("bert", "ernie") for lengths in ("full", "ragged")]
HEAD_KINDS = ("cls", "match", "mrc", "mlm")
STRIDE = 11

HEAD_NAMES = {
    "cls_out_w": "out.weight",
    "cls_out_b": "out.bias",
    "cls_squad_out_w": "out.weight",
    "cls_squad_out_b": "out.bias",
    "mask_lm_trans_fc.w_0": "transform.weight",
    "mask_lm_trans_fc.b_0": "transform.bias",
    "mask_lm_trans_layer_norm_scale": "norm.weight",
    "mask_lm_trans_layer_norm_bias": "norm.bias",
    "mask_lm_out_fc.b_0": "bias",
}


def arrays(name: str) -> dict[str, Tensor]:
    """A recorded file; ids as int64. What it has every 11th number of comes whole where that is at hand."""
    with np.load(FOLDER / name, allow_pickle=False) as file:
        tensors = {key: torch.from_numpy(file[key]) for key in file.files}
    for key, value in recorded_whole(name).items():
        if key in tensors and tensors[key].numel() != value.numel():
            assert torch.equal(tensors[key].flatten(), value.flatten()[::STRIDE]), key
            tensors[key] = value
    return {key: value.long() if value.dtype == torch.int16 else value for key, value in tensors.items()}


@functools.cache
def recorded_whole(name: str) -> dict[str, Tensor]:
    """The tensors of a file as they were recorded; nothing where the recorded material is missing."""
    if "/" in name:
        files = {"": RECORDED_0 / "formats" / name}
    else:
        kind, _, lengths = name.removesuffix(".npz").partition("_")
        folder = RECORDED_0 / "forward" / lengths
        files = {f"{head}/": folder / f"{kind}_{head}.npz" for head in HEAD_KINDS}
    found = {}
    for start, path in files.items():
        if path.is_file():
            with np.load(path, allow_pickle=False) as file:
                for key in file.files:
                    own = key.replace("/__paddlepalm_", "/").replace("/t/", "/")
                    found[f"{start}{own}"] = torch.from_numpy(file[key])
    return found


def backbone_of(kind: str) -> Backbone:
    """The recorded BERT or ERNIE."""
    config: dict[str, Any] = json.loads(
        (FOLDER / f"pretrain_{kind}" / f"{kind}_config.json").read_text(encoding="utf-8")
    )
    cls = {"bert": BERT, "ernie": ERNIE}[kind]
    backbone = cls.from_config({**config, "intermediate_size": 128, "layer_norm_eps": 1e-6})
    recorded = {name: value for name, value in arrays(f"{kind}_params.npz").items() if "/" not in name}
    backbone.load_state_dict(to_ours(recorded).weights)
    return backbone


def head_of(kind: str, kind_of_head: str) -> Head:
    """The recorded output layer `kind_of_head` on the recorded backbone `kind`."""
    head: Head = {
        "cls": lambda: Classify(4, 32),
        "match": lambda: Match(2, 32),
        "mrc": lambda: MRC(hidden_size=32),
        "mlm": lambda: MaskLM(32, 500, "gelu", layer_norm_eps=1e-6),
    }[kind_of_head]()
    recorded = arrays(f"{kind}_params.npz")
    ours = {
        HEAD_NAMES[key.split("/")[1]]: value
        for key, value in recorded.items()
        if key.startswith(kind_of_head + "/")
    }
    head.load_state_dict({name: value.t() if value.dim() == 2 else value for name, value in ours.items()})
    return head.eval()


def batch_of(kind: str, lengths: str, head: str) -> dict[str, Tensor]:
    """The recorded batch."""
    recorded = arrays(f"{kind}_{lengths}.npz")
    own = {key: value for key, value in recorded.items() if key.startswith(("in/", f"{head}/in/"))}
    return {key.rpartition("/")[2]: value for key, value in own.items()}


def sampled(value: Tensor, recorded: Tensor) -> Tensor:
    """What a recorded file keeps of a tensor in the original's orientation: all, or every 11th number."""
    return value if value.numel() == recorded.numel() else value.flatten()[::STRIDE]


def theirs(module: nn.Module, name: str) -> Tensor:
    """The gradient of the parameter `name`, oriented as the original keeps it."""
    parameter = module.get_parameter(name)
    assert parameter.grad is not None, name
    is_linear = parameter.dim() == 2 and not name.startswith("embeddings.")
    return parameter.grad.t() if is_linear else parameter.grad
