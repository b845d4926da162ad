"""Runs on encoders of the `transformers` library: trained, resumed, evaluated, predicted, exported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import palm
import palm.export
from helpers.components import encoder_inputs
from helpers.library_encoders import model_directory, refuse_connections, run_of, write_config
from helpers.messages import raises
from palm.backbone.transformers import REFUSED, RUN, Transformers
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, PalmError
from palm.export.onnx_model import to_onnx
from palm.paradigm import MaskLM
from palm.pretrained.directory import BACKBONE_OF
from palm.pretrained.loading import load_backbone

transformers = pytest.importorskip("transformers", minversion="5.9")


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2", "eurobert"])
def test_all_tasks_train_resume_with_equal_bits_and_predict(family: str, tmp_path: Path) -> None:
    model = model_directory(tmp_path, family)
    config = run_of(tmp_path, model, tasks_per_step=2, save_every_n_steps=7, keep_last_n=9)
    straight = Controller(config, argv=[]).train()
    whole = sorted((tmp_path / "out").glob("step_*"), key=lambda path: int(path.name[5:]))
    saved = {path.name: safe_arrays(path) for path in whole}
    later = config | {"save_path": str(tmp_path / "resumed")}
    Controller(later | {"resume": str(whole[0])}, argv=[]).train()
    again = sorted((tmp_path / "resumed").glob("step_*"), key=lambda path: int(path.name[5:]))
    assert again[-1].name == whole[-1].name
    for name, value in safe_arrays(again[-1]).items():
        assert np.array_equal(value, saved[whole[-1].name][name]), name
    assert set(straight.steps) == {"cls", "match", "mlm", "mrc"}
    predicted = palm.load_model(tmp_path / "out" / "cls" / "infer_model").predict(
        ["Anna has a new red boat ."]
    )
    assert sum(predicted[0]["probs"]) == pytest.approx(1, abs=1e-5)


def safe_arrays(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return {
        f"{file.name}:{n}": v for file in folder.glob("*.safetensors") for n, v in load_file(file).items()
    }


def test_a_saved_model_needs_neither_the_original_directory_nor_the_configuration(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "modernbert")
    Controller(run_of(tmp_path, model, "cls"), argv=[]).train()
    saved = tmp_path / "out" / "cls" / "infer_model"
    texts = ["Anna has a new red boat .", "Ben has an old blue ball ."]
    before = palm.load_model(saved).predict(texts)
    moved = saved.rename(tmp_path / "elsewhere")
    model.rename(tmp_path / "gone")
    assert palm.load_model(moved).predict(texts) == before


def test_weights_of_a_model_with_a_head_are_those_of_its_encoder(tmp_path: Path) -> None:
    directory = model_directory(tmp_path, "modernbert", "ForSequenceClassification")
    original = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").state_dict()
    backbone = load_backbone(directory)
    assert isinstance(backbone, Transformers)
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, original[name]), name


HOSTILE: dict[str, Any] = {
    "auto_map": {"AutoModel": "modeling.Evil"},
    "attn_implementation": "kernels-community/evil",
    "_attn_implementation": "flash_attention_2",
    "_attn_implementation_internal": "kernels-community/evil",
    "experts_implementation": "kernels-community/evil",
    "quantization_config": {"quant_method": "bitsandbytes"},
    "use_kernels": True,
    "kernel_config": {"x": "y"},
    "is_decoder": True,
    "add_cross_attention": True,
    "is_encoder_decoder": True,
}


def test_every_setting_that_is_refused_is_tried() -> None:
    assert HOSTILE.keys() == REFUSED.keys()


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(("setting", "value"), HOSTILE.items())
def test_a_setting_that_brings_code_or_changes_the_computation_is_refused_by_name(
    setting: str, value: Any, is_nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = model_directory(tmp_path, "modernbert")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    hostile = {"text_config": {setting: value}} if is_nested else {setting: value}
    (directory / "config.json").write_text(json.dumps(config | hostile), encoding="utf-8")
    (directory / "modeling.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    refuse_connections(monkeypatch)
    with raises(PalmError, setting, str(directory)):
        load_backbone(directory)


def test_a_local_directory_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model_directory(tmp_path, "modernbert")
    refuse_connections(monkeypatch)
    assert load_backbone(directory).outputs_attr["encoder_outputs"].shape == ("batch", "seq", 32)


def test_layers_are_named_and_frozen(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "modernbert")
    before = {n: v.clone() for n, v in load_backbone(model).state_dict().items()}
    config = run_of(tmp_path, model, "cls", freeze="embeddings")
    Controller(config, argv=[]).train()
    after = palm.load_model(tmp_path / "out" / "cls" / "infer_model").backbone.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved
    assert not any("embeddings" in name for name in moved)


NOT_CHECKPOINTED = {"albert", "mpnet", "flaubert", "ibert", "squeezebert", "xlm"}
"""Families whose layers the library cannot compute again."""


@pytest.mark.parametrize("family", sorted(RUN))
def test_checkpointing_activations_changes_no_gradient(family: str, tmp_path: Path) -> None:
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    file = write_config(tmp_path, family)
    found = []
    for checkpoints in (False, True):
        backbone = Transformers(file)
        backbone.load_state_dict(random_weights(backbone))
        backbone.train()
        for part in backbone.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        if checkpoints and family in NOT_CHECKPOINTED:
            with pytest.raises(ConfigError):
                backbone.checkpoint_activations()
            return
        if checkpoints:
            backbone.checkpoint_activations()
        ids = torch.arange(5, 25).view(2, 10)
        mask = torch.arange(10) < torch.tensor([[10], [4]])
        zeros = torch.zeros_like(ids)
        inputs = {"token_ids": ids, "segment_ids": zeros, "input_mask": mask}
        backbone(inputs, ["encoder_outputs"])["encoder_outputs"].square().sum().backward()
        found.append({n: p.grad for n, p in backbone.named_parameters() if p.grad is not None})
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def random_weights(backbone: Transformers) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {name: torch.randn_like(value) * 0.1 for name, value in backbone.state_dict().items()}


def test_a_window_reaches_as_far_as_the_library_says_and_no_further(tmp_path: Path) -> None:
    directory = model_directory(
        tmp_path, "modernbert", local_attention=8, global_attn_every_n_layers=99, num_hidden_layers=2
    )
    backbone = Transformers(directory / "config.json").eval()
    judge = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    ids = torch.arange(5, 35)[None] % 20 + 5
    ours = {"token_ids": ids, "input_mask": torch.ones_like(ids, dtype=torch.bool)}
    reach = reached(backbone.model, lambda: backbone(ours, ["encoder_outputs"])["encoder_outputs"])
    assert reach == reached(judge, lambda: judge(input_ids=ids).last_hidden_state)
    # A window of 8 is 4 tokens to each side; the first of the two layers sees all.
    assert reach == [abs(place - 15) <= 4 for place in range(30)]


def reached(model: Any, compute: Callable[[], torch.Tensor]) -> list[bool]:
    """Tell which of 30 tokens the second layer's 16th one depends on, by its gradient."""
    seen: list[torch.Tensor] = []
    handle = model.layers[0].register_forward_hook(lambda _, __, out: seen.append(out))
    token = compute()[0, 15]
    # The plain sum of what a layer norm gives is a constant.
    (gradient,) = torch.autograd.grad((token * torch.arange(len(token))).sum(), seen)
    handle.remove()
    return (gradient.reshape(30, -1).abs().sum(1) > 0).tolist()


@pytest.mark.parametrize("family", sorted(RUN - BACKBONE_OF.keys()))
def test_a_converted_encoder_has_the_keys_and_the_bits_of_the_original(family: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    directory = model_directory(tmp_path, family, "")
    palm.convert(directory, tmp_path / "back")
    original = load_file(directory / "model.safetensors")
    written = load_file(tmp_path / "back" / "model.safetensors")
    assert written.keys() == original.keys()
    assert all(np.array_equal(written[name], value) for name, value in original.items())
    again = transformers.AutoModel.from_pretrained(tmp_path / "back")
    assert again.config.model_type == family


@pytest.mark.parametrize("family", ["eurobert", "roberta-prelayernorm"])
def test_an_onnx_graph_computes_what_the_packed_encoder_computes(family: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    directory = model_directory(tmp_path, family, num_hidden_layers=1)
    Controller(run_of(tmp_path, directory, "cls", max_steps=2, num_epochs=1), argv=[]).train()
    to_onnx(tmp_path / "out" / "cls" / "infer_model", tmp_path / "graph")
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "model.onnx")
    model = palm.load_model(tmp_path / "out" / "cls" / "infer_model", precision="fp32")
    texts = ["Anna has a new red boat .", "a ball", "Ben has an old blue ball , and a new red boat ."]
    expected = [row["probs"] for row in model.predict(texts)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "graph")
    rows = tokenizer(texts, padding=True, return_tensors="np")
    given = {spec.name: rows[spec.name] for spec in session.get_inputs()}
    (logits,) = session.run(["logits"], given)
    found = torch.from_numpy(logits).softmax(-1).tolist()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("family", ["modernbert", "bert"])
def test_pooling_of_the_directory_is_saved_with_the_model(family: str, tmp_path: Path) -> None:
    directory = model_directory(tmp_path, family, "")
    (directory / "1_Pooling").mkdir()
    pooling = {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
    }
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")
    rate = {"warmup_proportion": 0, "lr_scheduler": "constant"}
    given = run_of(tmp_path, directory, "cls", pooling="model", save_every_n_steps=1, **rate)
    Controller({**given, "max_steps": 1}, argv=[]).train()
    assert Controller({**given, "max_steps": 2}, argv=["--resume", "auto"]).train().steps == {"cls": 2}
    backbone = palm.load_model(tmp_path / "out" / "cls" / "infer_model").backbone
    assert backbone.settings["pooling"] == "mean"
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 5, 6]])
    mask = ids > 0
    inputs = encoder_inputs(ids, mask)
    outputs = backbone.eval()(inputs)
    expected = torch.stack([outputs["encoder_outputs"][0, :3].mean(0), outputs["encoder_outputs"][1].mean(0)])
    torch.testing.assert_close(outputs["sentence_embedding"], expected)


@pytest.mark.parametrize("family", ["modernbert", "albert", "xlm-roberta-xl", "eurobert", "deberta-v2"])
def test_an_exported_classifier_computes_what_palm_predicts(family: str, tmp_path: Path) -> None:
    directory = model_directory(tmp_path, family)
    Controller(run_of(tmp_path, directory, "cls", max_steps=2, num_epochs=1), argv=[]).train()
    saved = tmp_path / "out" / "cls" / "infer_model"
    palm.export.to_hugging_face(saved, tmp_path / "hf")
    texts = ["Anna has a new red boat .", "a ball", "Ben has an old blue ball , and a new red boat ."]
    expected = [row["logits"] for row in palm.load_model(saved, precision="fp32").predict(texts)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        found = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


HEADED = [
    ("modernbert", "SequenceClassification", "cls", {"out.weight": "classifier.weight"}),
    ("deberta-v2", "QuestionAnswering", "mrc", {"out.bias": "qa_outputs.bias"}),
    ("deberta-v2", "TokenClassification", "seq_label", {"out.weight": "classifier.weight"}),
    ("modernbert", "MaskedLM", "mlm", {"above.layers.head.dense.weight": "head.dense.weight"}),
    ("modernbert", "MaskedLM", "mlm", {"bias": "decoder.bias"}),
    ("modernbert", "TokenClassification", "seq_label", {"above.layers.head.norm.weight": "head.norm.weight"}),
    ("modernbert", "QuestionAnswering", "mrc", {"out.weight": "classifier.weight"}),
    ("eurobert", "MaskedLM", "mlm", {"above.table": "lm_head.weight"}),
    ("bert", "MaskedLM", "mlm", {"bias": "cls.predictions.bias"}),
    ("bert", "SequenceClassification", "cls", {"out.weight": "classifier.weight"}),
    ("roberta", "QuestionAnswering", "mrc", {"out.weight": "qa_outputs.weight"}),
]


@pytest.mark.parametrize(("family", "model", "paradigm", "names"), HEADED)
def test_a_head_beside_the_encoder_is_loaded(
    family: str, model: str, paradigm: str, names: dict[str, str], tmp_path: Path
) -> None:
    from palm.paradigm import HEADS
    from palm.pretrained.loading import load_pretrain

    directory = model_directory(tmp_path, family, f"For{model}", num_labels=2)
    original = getattr(transformers, f"AutoModelFor{model}").from_pretrained(directory)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(0.01)  # biases are zero otherwise
    original.save_pretrained(directory)
    backbone = load_backbone(directory)
    sizes = {"hidden_size": 32, "vocab_size": 60, "n_classes": 2}
    head_class = HEADS[paradigm]
    settings = {n: v for n, v in sizes.items() if n in palm.config.settings_of(head_class)}
    if paradigm == "mlm":
        settings["vocab_size"] = int(original.config.vocab_size)
    head = head_class(**settings)
    head.adapt(backbone.head_layers)
    load_pretrain(backbone, directory, [(paradigm, head, [])])
    state, theirs = head.state_dict(), original.state_dict()
    for ours, name in names.items():
        assert torch.equal(state[ours], theirs[name])


def test_a_head_of_other_labels_is_left(tmp_path: Path) -> None:
    from palm.paradigm import Classify
    from palm.pretrained.loading import load_pretrain

    labels = {"id2label": {0: "good", 1: "bad"}, "label2id": {"good": 0, "bad": 1}}
    directory = model_directory(tmp_path, "modernbert", "ForSequenceClassification", **labels)
    backbone, head = load_backbone(directory), Classify(n_classes=2, hidden_size=32)
    before = head.out.weight.clone()
    load_pretrain(backbone, directory, [("cls", head, ["bad", "good"])])
    assert torch.equal(head.out.weight, before)
    load_pretrain(backbone, directory, [("cls", head, ["good", "bad"])])
    assert not torch.equal(head.out.weight, before)


FEATURES: dict[str, dict[str, Any]] = {
    "checkpointing": {"activation_checkpointing": True},
    "two tasks a step": {"tasks_per_step": 2},
}


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
@pytest.mark.parametrize("feature", FEATURES)
def test_what_palms_own_encoders_can_the_librarys_can(feature: str, family: str, tmp_path: Path) -> None:
    model = model_directory(tmp_path, family)
    config = run_of(tmp_path, model, "cls", "match", max_steps=4, num_epochs=1, **FEATURES[feature])
    result = Controller(config, argv=[]).train()
    assert sum(result.steps.values()) >= 4


def test_effort_knows_the_width_of_the_librarys_encoder(tmp_path: Path) -> None:
    given = run_of(tmp_path, model_directory(tmp_path, "modernbert"), "cls", effort="best")
    del given["learning_rate"]
    # 2e-4 · (384 / 64) ** 1.5: this one is 32 wide, and 64 is the narrowest that the rule tells apart.
    assert Controller(given, argv=[]).run.to_dict()["global"]["learning_rate"] == 0.0029


@pytest.mark.parametrize(
    ("family", "targets"), [("modernbert", ["Wqkv"]), ("deberta-v2", ["query_proj", "value_proj"])]
)
def test_tasks_have_adapters_of_their_own_on_the_librarys_layers(
    family: str, targets: list[str], tmp_path: Path
) -> None:
    model = model_directory(tmp_path, family)
    lora = {"rank": 2, "targets": targets}
    settings = {"tasks_per_step": "all", "lora": lora, "num_epochs": 1, "max_steps": 2}
    Controller(run_of(tmp_path, model, "cls", "match", **settings), argv=[]).train()
    cls, match = (
        palm.load_model(tmp_path / "out" / task, precision="fp32").backbone.state_dict()
        for task in ("cls", "match")
    )
    differing = {name for name, value in cls.items() if not value.equal(match[name])}
    assert len(differing) == 3 * len(targets)
    assert all(name.removesuffix(".weight").endswith(tuple(targets)) for name in differing)


def test_stages_hand_on_the_librarys_encoder(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "modernbert")
    stages = [{"name": "heads", "freeze": "backbone", "max_steps": 2}, {"name": "all", "max_steps": 2}]
    before = load_backbone(model).state_dict()
    Controller(run_of(tmp_path, model, "cls", "match", stages=stages), argv=[]).train()
    (first,) = (tmp_path / "out" / "stages").glob("*-heads/weights")
    kept = safe_arrays(first)
    names = [name for name in kept if "layers.2" in name]
    assert names
    ends = {name.split("layers.2", 1)[1]: value for name, value in kept.items() if "layers.2" in name}
    for name, value in before.items():
        if "layers.2" in name:
            assert np.array_equal(ends[name.split("layers.2", 1)[1]], value.numpy())
    after = palm.load_model(tmp_path / "out" / "cls" / "infer_model").backbone.state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in after.items())


@pytest.mark.parametrize(("family", "layers"), [("modernbert", 2), ("deberta-v2", 1)])
def test_engine_onnx_predicts_as_torch_does(
    family: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("PALM_DATA_CACHE", str(tmp_path / "cache"))
    directory = model_directory(tmp_path, family, num_hidden_layers=layers)
    Controller(run_of(tmp_path, directory, "cls", max_steps=2, num_epochs=1), argv=[]).train()
    saved = tmp_path / "out" / "cls" / "infer_model"
    texts = ["Anna has a new red boat .", "a ball"]
    expected, found = (
        [row["probs"] for row in palm.load_model(saved, precision="fp32", **options).predict(texts)]
        for options in ({}, {"engine": "onnx"})
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_pickle_beside_the_configuration_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    directory = model_directory(tmp_path, "modernbert")
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Evil()}))
    refuse_connections(monkeypatch)
    with raises(PalmError, "pytorch_model.bin"):
        load_backbone(directory)
    assert not (tmp_path / "ran").exists()


# Positions, shared attention heads, rates, averages and tasks' own layers on the library's encoders.


def inputs_of(ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    zeros = torch.zeros_like(ids)
    return {"token_ids": ids, "segment_ids": zeros, "position_ids": zeros, "input_mask": mask}


def judge_of(backbone: Transformers) -> Any:
    """The library's own model with the same weights."""
    config = copy.deepcopy(backbone.config)
    judge = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    judge.load_state_dict(backbone.model.state_dict(), strict=False)
    return judge


@pytest.mark.parametrize("pad", [0, 1, 3])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_explicit_positions_are_those_that_the_library_counts_from_its_padding(
    family: str, pad: int, tmp_path: Path
) -> None:
    backbone = Transformers(write_config(tmp_path, family, pad_token_id=pad)).eval()
    judge = judge_of(backbone)
    ids = torch.arange(5, 25).view(2, 10)
    lengths = torch.tensor([[10], [6]])
    mask = torch.arange(10) < lengths
    with torch.no_grad():
        found = backbone(inputs_of(ids.masked_fill(~mask, pad), mask), ["encoder_outputs"])["encoder_outputs"]
        none_given = torch.cat(
            [judge(ids[row : row + 1, :n]).last_hidden_state[0] for row, n in ((0, 10), (1, 6))]
        )
        places = pad + 1 + torch.arange(10)[None]
        given = judge(ids[:1], position_ids=places).last_hidden_state[0]
        others = judge(ids[:1], position_ids=places - 1).last_hidden_state[0]
    torch.testing.assert_close(found[mask], none_given, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given, none_given[:10], atol=1e-6, rtol=1e-6)
    assert (others - given).abs().max() > 1e-3


def test_four_query_heads_read_two_heads_of_keys(tmp_path: Path) -> None:
    backbone = Transformers(
        write_config(tmp_path, "eurobert", num_attention_heads=4, num_key_value_heads=2)
    ).eval()
    weights = backbone.model.state_dict()
    assert weights["layers.0.self_attn.q_proj.weight"].shape == (32, 32)
    assert weights["layers.0.self_attn.k_proj.weight"].shape == (16, 32)
    judge = judge_of(backbone)
    ids = torch.arange(5, 25).view(2, 10)
    mask = torch.arange(10) < torch.tensor([[10], [6]])
    with torch.no_grad():
        found = backbone(inputs_of(ids, mask), ["encoder_outputs"])["encoder_outputs"][mask]
        alone = torch.cat(
            [judge(ids[row : row + 1, :n]).last_hidden_state[0] for row, n in ((0, 10), (1, 6))]
        )
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


def test_rates_fall_from_layer_to_layer(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "modernbert")
    rates = {"optimizer": "adamwdl", "layerwise_decay": 0.5, "learning_rate": 8e-3, "warmup_proportion": 0}
    training = Controller(run_of(tmp_path, model, "cls", **rates), argv=[]).training()
    groups = training.optimizer.param_groups
    by_parameter = {id(p): group["lr"] for group in groups for p in group["params"]}
    found = {name: by_parameter[id(p)] for name, p in training.model.named_parameters()}
    assert found["backbone.model.embeddings.tok_embeddings.weight"] == pytest.approx(1e-3)
    for layer, rate in enumerate((2e-3, 4e-3, 8e-3)):
        assert found[f"backbone.model.layers.{layer}.mlp.Wi.weight"] == pytest.approx(rate)
    assert found["backbone.model.final_norm.weight"] == pytest.approx(8e-3)
    assert found["heads.@cls.out.weight"] == pytest.approx(8e-3)


@pytest.mark.parametrize(
    ("family", "decoder"),
    [("modernbert", "decoder"), ("roberta", "lm_head.decoder"), ("bert", "cls.predictions.decoder")],
)
def test_the_decoder_of_masked_words_is_the_word_table_before_and_after(
    family: str, decoder: str, tmp_path: Path
) -> None:
    model = model_directory(tmp_path, family)
    config = run_of(tmp_path, model, "mlm", max_steps=2, num_epochs=1)
    config["backbone"] = "transformers"
    config["backbone_config_path"] = str(model / "config.json")
    config["vocab_path"] = str(model / "tokenizer.json")
    training = Controller(config, argv=[]).training()
    head = training.model.heads["@mlm"]
    assert isinstance(head, MaskLM)
    rows = training.model.backbone.model.get_input_embeddings().weight
    assert [name for name, p in head.named_parameters() if p.shape == rows.shape] == []
    Controller(config, argv=[]).train()
    saved = tmp_path / "out" / "mlm" / "infer_model"
    palm.export.to_hugging_face(saved, tmp_path / "hf")
    exported = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf")
    table = exported.get_input_embeddings().weight
    assert exported.get_submodule(decoder).weight.data_ptr() == table.data_ptr()
    loaded = palm.load_model(saved).backbone
    assert isinstance(loaded, Transformers)
    assert torch.equal(loaded.model.get_input_embeddings().weight, table)


def test_a_decoder_that_is_not_tied_is_loaded_trained_and_exported(tmp_path: Path) -> None:
    model = model_directory(tmp_path, "eurobert")
    before = transformers.AutoModelForMaskedLM.from_pretrained(model).lm_head.weight.detach().clone()
    Controller(run_of(tmp_path, model, "mlm", max_steps=2, num_epochs=1), argv=[]).train()
    saved = tmp_path / "out" / "mlm" / "infer_model"
    palm.export.to_hugging_face(saved, tmp_path / "hf")
    exported = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf")
    change = (exported.lm_head.weight - before).abs().max()
    assert 0 < change < 0.02
    head: Any = palm.load_model(saved).head
    assert torch.equal(exported.lm_head.weight, head.above.table)
    assert exported.lm_head.weight.data_ptr() != exported.get_input_embeddings().weight.data_ptr()
