"""BERT and ERNIE give what PaddlePALM's gave, and cost nothing for padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.components import encoder_inputs
from helpers.golden_forward import CASES, arrays, backbone_of, batch_of
from helpers.tiny import sizes
from palm.backbone import BERT, ERNIE, Backbone
from palm.backbone.packing import Packing, Padded
from palm.core.errors import WiringError

SIZES = sizes(16, 2, 2, vocab_size=30, max_position_embeddings=12)
LENGTHS = (7, 1, 4)


def batch(lengths: tuple[int, ...] = LENGTHS, seq: int | None = None) -> dict[str, Tensor]:
    seq = seq or max(lengths)
    shape = (len(lengths), seq)
    numbers = torch.Generator().manual_seed(0)
    return encoder_inputs(
        torch.randint(30, shape, generator=numbers),
        torch.arange(seq) < torch.tensor(lengths)[:, None],
        segment_ids=torch.randint(2, shape, generator=numbers),
        task_ids=torch.randint(3, shape, generator=numbers),
    )


def tiny(cls: type[Backbone] = BERT, **settings: object) -> Backbone:
    torch.manual_seed(3)
    backbone: Backbone = cls(**{**SIZES, "initializer_range": 0.3, **settings})
    return backbone.eval()


@pytest.mark.parametrize(("kind", "lengths"), CASES)
def test_all_outputs_at_real_tokens_equal_the_originals(kind: str, lengths: str) -> None:
    inputs, recorded = batch_of(kind, lengths, "cls"), arrays(f"{kind}_{lengths}.npz")
    outputs = backbone_of(kind).eval()(inputs)
    real = inputs["input_mask"]
    for name in ("word_embedding", "encoder_outputs"):
        torch.testing.assert_close(outputs[name][real], recorded[f"bb/{name}"][real], atol=2e-6, rtol=0)
    for name in ("sentence_embedding", "sentence_pair_embedding"):
        torch.testing.assert_close(outputs[name], recorded[f"bb/{name}"], atol=2e-6, rtol=0)
    assert torch.equal(outputs["embedding_table"], arrays(f"{kind}_params.npz")["word_embedding"])


@pytest.mark.parametrize("kind", ["bert", "ernie"])
def test_padding_that_is_left_in_place_changes_nothing_at_real_tokens(kind: str) -> None:
    encoder, inputs = backbone_of(kind).eval(), batch_of(kind, "ragged", "cls")
    real = inputs["input_mask"]
    assert not real.all()
    packed, padded = encoder(inputs), encoder.features(inputs, Padded.of(real))
    for name in ("word_embedding", "encoder_outputs"):
        torch.testing.assert_close(padded[name][real], packed[name][real], atol=1e-6, rtol=0)
    for name in ("sentence_embedding", "sentence_pair_embedding"):
        torch.testing.assert_close(padded[name], packed[name], atol=1e-6, rtol=0)
    alone = encoder.features(inputs, Padded.of(real), ["sentence_embedding"])["sentence_embedding"]
    torch.testing.assert_close(alone, packed["sentence_embedding"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("wanted", [["encoder_outputs"], ["sentence_embedding"]])
@pytest.mark.parametrize("training", [True, False])
def test_spare_tokens_change_neither_outputs_nor_gradients(wanted: list[str], training: bool) -> None:
    backbone = tiny()
    inputs = batch()
    packing = Packing.of(inputs["input_mask"])
    outputs: list[Tensor] = []
    gradients: list[dict[str, Tensor]] = []
    for spare in (0, 5):
        backbone.zero_grad()
        with torch.set_grad_enabled(training):
            (output,) = backbone.features(inputs, replace(packing, spare=spare), wanted).values()
        if training:
            output.square().sum().backward()
        outputs.append(output)
        gradients.append({n: p.grad.clone() for n, p in backbone.named_parameters() if p.grad is not None})
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-6, rtol=0)
    assert bool(gradients[0]) == training
    torch.testing.assert_close(gradients[1], gradients[0], atol=2e-5, rtol=1e-5)


def test_only_what_is_wanted_is_computed() -> None:
    backbone, inputs = tiny(), batch()
    last = backbone.get_submodule("layers.1.ffn")
    seen: list[int] = []
    last.register_forward_hook(lambda *call: seen.append(len(call[1][0])))
    backbone(inputs, ["encoder_outputs"])
    backbone(inputs, ["sentence_embedding"])
    backbone(inputs, ["word_embedding"])
    assert seen == [sum(LENGTHS), len(LENGTHS)]


def test_a_post_norm_layer_written_by_torch_gives_the_same() -> None:
    backbone, inputs = tiny(num_hidden_layers=1, layer_norm_eps=1e-6), batch((6, 6))
    layer = nn.TransformerEncoderLayer(16, 2, 64, 0.0, F.gelu, 1e-6, batch_first=True, norm_first=False)
    ours = {name.removeprefix("layers.0."): value for name, value in backbone.state_dict().items()}
    with torch.no_grad():
        for part in ("weight", "bias"):
            stacked = torch.cat([ours[f"attention.{name}.{part}"] for name in ("query", "key", "value")])
            getattr(layer.self_attn, f"in_proj_{part}").copy_(stacked)
            getattr(layer.self_attn.out_proj, part).copy_(ours[f"attention.output.{part}"])
            getattr(layer.linear1, part).copy_(ours[f"ffn.inner.{part}"])
            getattr(layer.linear2, part).copy_(ours[f"ffn.outer.{part}"])
            getattr(layer.norm1, part).copy_(ours[f"attention_norm.{part}"])
            getattr(layer.norm2, part).copy_(ours[f"ffn_norm.{part}"])
    outputs = backbone(inputs)
    torch.testing.assert_close(
        layer(outputs["word_embedding"]), outputs["encoder_outputs"], atol=2e-6, rtol=0
    )


def test_dropout_acts_at_four_places_and_only_while_training() -> None:
    inputs = batch((5, 5))
    for settings in (
        {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.0},
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5},
    ):
        backbone = tiny(num_hidden_layers=1, **settings)
        quiet = backbone(inputs)
        assert torch.equal(quiet["encoder_outputs"], backbone(inputs)["encoder_outputs"])
        backbone.train()
        noisy = backbone(inputs)
        assert not torch.equal(noisy["encoder_outputs"], quiet["encoder_outputs"])
        dropped = (noisy["word_embedding"] == 0).float().mean()
        assert bool(dropped > 0.3) == bool(settings["hidden_dropout_prob"])
    dropouts = [
        name for name, part in tiny(num_hidden_layers=1).named_modules() if isinstance(part, nn.Dropout)
    ]
    assert dropouts == ["embeddings.dropout", "layers.0.dropout"]  # the latter serves both sublayers


def test_weights_start_from_a_normal_that_is_cut_at_two_sigma() -> None:
    torch.manual_seed(0)
    backbone = BERT(64, 2, 4, 5000, 64, initializer_range=0.05)
    for name, parameter in backbone.named_parameters():
        if "norm.weight" in name:
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            assert parameter.abs().max() <= 0.1, name
    words = backbone.get_parameter("embeddings.word.weight")
    assert words.std().item() == pytest.approx(0.05 * 0.8796, rel=0.01)  # sigma of a normal cut at two sigma


def test_a_file_may_have_the_other_spellings_of_ernies_settings() -> None:
    ernie = ERNIE.from_config({**SIZES, "type_vocab_size": 4, "use_task_emb": False})
    assert ernie.settings["sent_type_vocab_size"] == 4
    assert ernie.settings["use_task_id"] is False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": 30}, r"token_ids: 30 is outside 0\.\.29; the backbone has vocab_size 30"),
        ({"position_ids": 12}, r"position_ids: 12 is outside 0\.\.11; .* max_position_embeddings 12"),
        ({"segment_ids": -1}, r"segment_ids: -1 is outside 0\.\.1; the backbone has type_vocab_size 2"),
    ],
)
def test_an_id_outside_its_table_is_named(change: dict[str, int], message: str) -> None:
    inputs = batch()
    for name, value in change.items():
        inputs[name][2, 1] = value
    with pytest.raises(WiringError, match=message):
        tiny()(inputs)


def test_a_sequence_beyond_the_position_table_is_named() -> None:
    with pytest.raises(WiringError, match=r"13 tokens .* 12 .*max_position_embeddings .*max_seq_len"):
        tiny()(batch((13,)))


def test_a_row_of_padding_alone_is_named() -> None:
    with pytest.raises(WiringError, match="input_mask: row 1 "):
        tiny()(batch((4, 0, 2)))


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooling_takes_all_real_tokens_and_no_pooler(pooling: str) -> None:
    backbone = BERT(**SIZES, pooling=pooling).eval()
    lengths = [5, 2, 3]
    ids = torch.arange(15).view(3, 5) % SIZES["vocab_size"]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    inputs = encoder_inputs(ids, mask)
    outputs = backbone(inputs)
    rows = [tokens[:length] for tokens, length in zip(outputs["encoder_outputs"], lengths, strict=True)]
    expected = torch.stack([row.mean(0) if pooling == "mean" else row.amax(0) for row in rows])
    torch.testing.assert_close(outputs["sentence_embedding"], expected)
    torch.testing.assert_close(backbone(inputs, ["sentence_embedding"])["sentence_embedding"], expected)
    assert "pooler.weight" not in backbone.state_dict()
