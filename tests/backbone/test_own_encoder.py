"""An encoder from parts that no built-in one has: rotary positions, pre-norm, a gate, a window."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.own_encoder import OwnEncoder
from palm.backbone import BERT
from palm.backbone.architecture import Architecture
from palm.backbone.attention import AttentionKind, rotate
from palm.backbone.encoder import Encoder
from palm.backbone.packing import Padded
from palm.backbone.shape import Table
from palm.config import settings_of
from palm.core.errors import ConfigError, WiringError

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 160}
LENGTHS = (150, 7, 1, 70)


def batch() -> dict[str, Tensor]:
    torch.manual_seed(4)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    positions = torch.arange(max(LENGTHS)).repeat(len(LENGTHS), 1)
    return {"token_ids": torch.randint(5, 50, mask.shape), "position_ids": positions, "input_mask": mask}


def own(**settings: Any) -> OwnEncoder:
    torch.manual_seed(3)
    return OwnEncoder(**{**SIZES, "initializer_range": 0.2, "window": 5, **settings}).eval()


def as_modernbert(encoder: OwnEncoder) -> Any:
    """transformers' ModernBERT with the encoder's weights; biases, and a norm before the first layer too."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {**SIZES, "local_attention": 2 * encoder.settings["window"], "pad_token_id": 0}
    biases = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True)
    model = transformers.ModernBertModel(transformers.ModernBertConfig(**sizes, **biases)).eval()
    model.layers[0].attn_norm = nn.LayerNorm(16, eps=1e-5)
    ours = encoder.state_dict()
    names = {"attention_norm": "attn_norm", "ffn_norm": "mlp_norm", "attention.output": "attn.Wo"}
    names |= {"ffn.outer": "mlp.Wo"}
    theirs = {"embeddings.tok_embeddings.weight": ours["embeddings.word.weight"]}
    for kind in ("weight", "bias"):
        theirs[f"embeddings.norm.{kind}"] = ours[f"embeddings.norm.{kind}"]
        theirs[f"final_norm.{kind}"] = ours[f"final_norm.{kind}"]
        for layer in (f"layers.{number}" for number in range(4)):
            for our, their in names.items():
                theirs[f"{layer}.{their}.{kind}"] = ours[f"{layer}.{our}.{kind}"]
            joined = {"attn.Wqkv": ["attention.query", "attention.key", "attention.value"]}
            joined |= {"mlp.Wi": ["ffn.inner", "ffn.gate"]}
            for their, parts in joined.items():
                theirs[f"{layer}.{their}.{kind}"] = torch.cat([ours[f"{layer}.{p}.{kind}"] for p in parts])
    model.load_state_dict(theirs)
    return model


def randomized(encoder: OwnEncoder) -> OwnEncoder:
    """Far enough from its start that norms and biases matter."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return encoder


def test_it_computes_what_modernbert_computes_with_its_gradients() -> None:
    encoder, inputs = randomized(own()), batch()
    model, real = as_modernbert(encoder), inputs["input_mask"]
    ours = encoder(inputs)["encoder_outputs"][real]
    theirs = model(inputs["token_ids"], attention_mask=real.long()).last_hidden_state[real]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    for outputs in (ours, theirs):
        outputs.square().sum().backward()
    pairs = [("embeddings.word", "embeddings.tok_embeddings"), ("layers.1.ffn_norm", "layers.1.mlp_norm")]
    pairs += [("layers.0.attention.output", "layers.0.attn.Wo"), ("layers.3.ffn.outer", "layers.3.mlp.Wo")]
    for our, their in pairs:
        expected = model.get_submodule(their).weight.grad
        found = encoder.get_submodule(our).weight.grad
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)
    gates = model.layers[2].mlp.Wi.weight.grad[24:]
    torch.testing.assert_close(
        encoder.get_submodule("layers.2.ffn.gate").weight.grad, gates, atol=1e-3, rtol=1e-4
    )


def test_padding_that_is_left_in_place_and_first_tokens_alone_change_nothing() -> None:
    encoder, inputs = randomized(own()), batch()
    real = inputs["input_mask"]
    with torch.no_grad():
        packed = encoder(inputs)
        padded = encoder.features(inputs, Padded.of(real))
        alone = [encoder(inputs, ["sentence_embedding"])["sentence_embedding"]]
        alone += [encoder.features(inputs, Padded.of(real), ["sentence_embedding"])["sentence_embedding"]]
    torch.testing.assert_close(
        padded["encoder_outputs"][real], packed["encoder_outputs"][real], atol=2e-6, rtol=0
    )
    for sentence in (*alone, padded["sentence_embedding"]):
        torch.testing.assert_close(sentence, packed["sentence_embedding"], atol=2e-6, rtol=0)


def test_a_token_beyond_all_windows_changes_nothing() -> None:
    encoder, inputs = own(global_every=1), batch()
    near = own(window=3, num_hidden_layers=2)
    near.layers[0] = near.layers[1]  # both with a window: a token reaches 6 others on either side
    other = {**inputs, "token_ids": inputs["token_ids"].clone()}
    other["token_ids"][0, 100] = 1
    with torch.no_grad():
        changes = [
            (e(inputs)["encoder_outputs"] != e(other)["encoder_outputs"])[0].any(1).nonzero()[:, 0].tolist()
            for e in (encoder, near)
        ]
    assert changes == [list(range(150)), list(range(94, 107))]


def test_in_bfloat16_it_differs_by_rounding() -> None:
    encoder, inputs = randomized(own()), batch()
    with torch.no_grad():
        exact = encoder(inputs)["encoder_outputs"]
        with torch.autocast("cpu", torch.bfloat16):
            rounded = encoder(inputs)["encoder_outputs"]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.1, rtol=0)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 3, 8)
    products = [
        (rotate(query, torch.tensor([a]), 100.0) * rotate(key, torch.tensor([b]), 100.0)).sum(-1)
        for a, b in ((0, 5), (40, 45), (5, 0))
    ]
    torch.testing.assert_close(products[0], products[1], atol=1e-5, rtol=0)
    assert (products[0] - products[2]).abs().min() > 0.01
    # coordinates 1 and 1 + 4 turn by 2 · 100^(-1/4)
    angle = torch.tensor(2 * 100**-0.25)
    expected = query[0, :, 1] * angle.cos() - query[0, :, 5] * angle.sin()
    torch.testing.assert_close(rotate(query, torch.tensor([2]), 100.0)[0, :, 1], expected)


def test_it_takes_its_own_settings_and_the_shared_ones_and_no_others() -> None:
    settings = settings_of(OwnEncoder)
    assert (settings["window"].annotation, settings["window"].default) == (int, 2)
    assert settings["window"].doc == "how far a token sees in most layers."
    assert settings["layer_norm_eps"].default == 1e-5
    assert own().settings["window"] == 5
    assert list(own().inputs_attr) == ["token_ids", "position_ids", "input_mask"]
    with pytest.raises(TypeError, match=r"OwnEncoder\(\).*'pad_token_id'"):
        OwnEncoder(**SIZES, pad_token_id=3)
    assert str(inspect.signature(BERT)).count("window") == 0


def test_what_is_wrong_with_it_is_named() -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings: 0 "):
        own(max_position_embeddings=0)
    with pytest.raises(ConfigError, match=r"num_attention_heads: .*not 5"):
        own(hidden_size=10)
    with pytest.raises(WiringError, match=r"150 tokens .*149"):
        own(max_position_embeddings=149)(batch())


def test_windows_of_a_bert_are_a_part_of_its_description() -> None:
    segments = (Table("segment", "segment_ids", "type_vocab_size", 2),)
    far, near = (
        Encoder(**SIZES, parts=Architecture(tables=segments, attention=(AttentionKind(window),))).eval()
        for window in (200, 1)
    )
    inputs = {**batch(), "segment_ids": torch.zeros_like(batch()["token_ids"])}
    torch.manual_seed(1)
    bert = BERT(**SIZES).eval()
    for encoder in (far, near):
        encoder.load_state_dict(bert.state_dict())
    outputs = [encoder(inputs)["encoder_outputs"] for encoder in (bert, far, near)]
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-6, rtol=0)
    assert (outputs[0] - outputs[2]).abs().max() > 0.01
