"""Low-rank adapters of a task's own: the same function as PEFT's, saved as its files, merged to predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import palm
from helpers import tiny
from helpers.components import encoder_inputs
from helpers.equal import differing
from palm.backbone.low_rank import LowRank, new_adapters
from palm.core.saved import load_tensors, save_tensors
from palm.pretrained.names import from_ours
from palm.pretrained.peft import read_adapters, write_adapters
from palm.report.inspection import inspect_directory
from palm.train.callbacks import Evaluated
from palm.train.loop import Training

IDS = torch.randint(5, 40, (3, 9), generator=torch.Generator().manual_seed(0))
INPUTS = encoder_inputs(IDS)


def config(folder: Path, **settings: Any) -> dict[str, Any]:
    """`cls` and `match` have adapters, `mlm` has none."""
    own = {"cls.lora": {"rank": 2}, "match.lora": {"rank": 3, "targets": ["key", "ffn.inner"]}}
    return tiny.config(folder, "cls", "match", "mlm", **{"warmup_proportion": 0.0, **own, **settings})


def run(folder: Path, **settings: Any) -> Training:
    return palm.Controller(config(folder, **settings), argv=[]).training()


def losses(training: Training, count: int) -> list[list[float]]:
    return [[part.loss.item() for part in training.next_step().parts] for _ in range(count)]


def changed(encoder: Any, targets: list[str] = ["query", "value", "output", "outer"]) -> LowRank:  # noqa: B006
    adapters = new_adapters(encoder, {"rank": 4, "alpha": 6, "targets": targets}, seed=1)
    for number, up in enumerate(adapters.up):
        torch.nn.init.normal_(up, std=0.3, generator=torch.Generator().manual_seed(number))
    return adapters


def library_bert(encoder: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {name: value for name, value in tiny.BACKBONE.items() if name != "initializer_range"}
    model = transformers.BertModel(transformers.BertConfig(**sizes, layer_norm_eps=1e-12)).eval()
    model.load_state_dict(from_ours(encoder.state_dict(), "huggingface"))
    return model


def outputs(model: Any) -> list[Tensor]:
    with torch.no_grad():
        found = model(IDS)
    return [found.last_hidden_state, found.pooler_output]


def ours(encoder: Any) -> list[Tensor]:
    with torch.no_grad():
        found = encoder.eval()(INPUTS)
    return [found["encoder_outputs"], found["sentence_embedding"]]


def test_outputs_are_those_of_low_rank_terms_beside_each_layer(tmp_path: Path) -> None:
    encoder = palm.backbone.BERT.from_config(tiny.BACKBONE)
    adapters = changed(encoder)
    write_adapters(adapters, encoder, tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    tensors = load_tensors(tmp_path / "adapter_model.safetensors")
    model = library_bert(encoder)
    assert len(settings["target_modules"]) == 8
    for name in settings["target_modules"]:
        down, up = (tensors[f"base_model.model.{name}.lora_{letter}.weight"] for letter in "AB")

        def add(_: Any, given: Any, made: Tensor, down: Tensor = down, up: Tensor = up) -> Tensor:
            return made + settings["lora_alpha"] / settings["r"] * (given[0] @ down.T @ up.T)

        model.get_submodule(name).register_forward_hook(add)
    torch.testing.assert_close(ours(adapters.merged_into(encoder)), outputs(model), atol=1e-5, rtol=0)
    assert not torch.allclose(ours(encoder)[0], outputs(model)[0], atol=0.1)


def test_peft_reads_what_palm_wrote_and_the_other_way_round(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    encoder = palm.backbone.BERT.from_config(tiny.BACKBONE)
    adapters = changed(encoder)
    write_adapters(adapters, encoder, tmp_path)
    theirs = peft.PeftModel.from_pretrained(library_bert(encoder), tmp_path).eval()
    torch.testing.assert_close(ours(adapters.merged_into(encoder)), outputs(theirs), atol=1e-5, rtol=0)

    wanted = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["query", "dense"], init_lora_weights=False)
    made = peft.get_peft_model(library_bert(encoder), wanted).eval()
    made.save_pretrained(tmp_path / "theirs")
    read = read_adapters(encoder, tmp_path / "theirs")
    torch.testing.assert_close(ours(read.merged_into(encoder)), outputs(made), atol=1e-5, rtol=0)


def test_adapters_of_a_model_with_a_head_are_read_without_it(tmp_path: Path) -> None:
    encoder = palm.backbone.BERT.from_config(tiny.BACKBONE)
    adapters = changed(encoder)
    write_adapters(adapters, encoder, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = {
        name.replace("base_model.model.", "base_model.model.bert."): value
        for name, value in load_tensors(file).items()
    }
    file.unlink()
    save_tensors(file, {**tensors, "base_model.model.classifier.weight": torch.zeros(2, 32)})
    read = read_adapters(encoder, tmp_path).merged_into(encoder)
    assert differing(adapters.merged_into(encoder), read) == []


def test_new_adapters_change_no_bit(folder: Path) -> None:
    own, plain = run(folder), run(folder, **{"cls.lora": None, "match.lora": None})
    for task in own.tasks:
        assert differing(own.model.encoder(task.name), plain.model.encoder(task.name)) == []
    for (cls, *_), training in ((own.tasks, own), (plain.tasks, plain)):
        training.step_on([(cls, cls.batches(0))])
    assert own.model.adapters("cls") is not None
    assert any(up.any() for up in own.model.adapters("cls").up)
    assert differing(own.model.head("cls"), plain.model.head("cls")) == []


@pytest.mark.parametrize(("is_frozen", "factor"), [(True, 2.4), (False, 3.4)])
def test_the_gradient_of_a_frozen_weight_is_not_computed(is_frozen: bool, factor: float) -> None:
    backbone = palm.backbone.BERT(64, 2, 2, 40, 16).requires_grad_(not is_frozen)
    every_layer = {"rank": 1, "targets": ["query", "key", "value", "output", "inner", "outer"]}
    encoder = new_adapters(backbone, every_layer, 1).applied_to(backbone)
    with FlopCounterMode(display=False) as forward:
        tokens = encoder(INPUTS, ["encoder_outputs"])["encoder_outputs"]
    with FlopCounterMode(display=False) as backward:
        tokens.sum().backward()
    flops = forward.get_total_flops() + backward.get_total_flops()
    assert factor - 1 < flops / forward.get_total_flops() < factor


def test_a_frozen_encoder_stays_and_each_task_moves_its_own_adapters(folder: Path) -> None:
    training = run(folder, freeze="backbone", backbone_learning_rate=1e-9)
    before = {name: value.clone() for name, value in training.model.named_parameters()}
    cls = training.tasks[0]
    for step in range(2):  # A has a gradient where B is not 0 any more
        training.step_on([(cls, cls.batches(step))])
    moved = {name for name, value in training.model.named_parameters() if not value.equal(before[name])}
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in moved} == {"lora.@cls", "heads.@cls"}
    assert {name for name in moved if "lora" in name} == {
        f"lora.@cls.{part}.{number}" for part in ("down", "up") for number in range(4)
    }
    moving = sum(value.numel() for name, value in before.items() if name.startswith("lora.@cls."))
    assert moving == 4 * (32 * 2 + 2 * 32)


def test_computing_activations_again_changes_no_loss(folder: Path) -> None:
    assert losses(run(folder, activation_checkpointing=True), 3) == losses(run(folder), 3)


def test_a_saved_model_is_merged_and_its_adapters_give_the_same_on_the_base(folder: Path) -> None:
    tiny.controller(folder, "mlm", num_epochs=1).train()
    base = folder / "base"
    (folder / "out" / "mlm" / "infer_model").rename(base)
    settings = {"pretrain_path": str(base), "freeze": "backbone", "num_epochs": 1, "learning_rate": 1e-2}
    given = config(folder, overwrite=True, use_ema=True, ema_decay=0.5, **settings)
    given["tasks"]["cls"]["dev_file"] = given["tasks"]["cls"]["train_file"]
    controller = palm.Controller(given, argv=[])
    result = controller.train()
    saved = folder / "out" / "cls" / "best_model"
    whole = palm.load_model(saved, precision="fp32")
    scores = [line.scores["cls"] for line in result.history if isinstance(line, Evaluated)]
    assert controller.evaluate("cls", saved) == pytest.approx(scores[-1])
    assert not (folder / "out" / "mlm" / "infer_model" / "lora").exists()
    pretrained = palm.load_model(base).backbone
    read = read_adapters(pretrained, saved / "lora").merged_into(pretrained)
    assert differing(whole.backbone, read) == []
    assert inspect_directory(saved)["lora"] == {"rank": 2, "alpha": 16.0, "base": str(base), "layers": 4}


def test_a_run_starts_from_adapters_of_a_directory(folder: Path) -> None:
    encoder = palm.backbone.BERT.from_config(tiny.BACKBONE)
    adapters = changed(encoder)
    write_adapters(adapters, encoder, folder)
    given = config(folder, **{"cls.lora": {"from": str(folder)}})
    training = palm.Controller(given, argv=[]).training()
    started = training.model.adapters("cls")
    assert started is not None
    for name, pair in adapters.factors().items():
        assert all(one.equal(other) for one, other in zip(pair, started.factors()[name], strict=True))
    losses(training, 2)


def test_the_encoders_of_transformers_take_adapters(folder: Path) -> None:
    pytest.importorskip("transformers")
    file = folder / "config.json"
    file.write_text(json.dumps({**tiny.BACKBONE, "model_type": "bert"}))
    settings = {"backbone": "transformers", "encoder_config_path": str(file), "num_epochs": 1}
    given = tiny.config(folder, "cls", "match", tasks_per_step="all", lora={"rank": 2}, **settings)
    palm.Controller(given, argv=[]).train()
    models = {task: palm.load_model(folder / "out" / task, precision="fp32") for task in ("cls", "match")}
    weights = [model.backbone.state_dict() for model in models.values()]
    differing = {name for name, value in weights[0].items() if not value.equal(weights[1][name])}
    layer = "model.encoder.layer.{}.attention.self.{}.weight"
    assert differing == {layer.format(k, part) for k in range(2) for part in ("query", "value")}
    names = load_tensors(folder / "out" / "cls" / "infer_model" / "lora" / "adapter_model.safetensors")
    assert "base_model.model.encoder.layer.1.attention.self.value.lora_B.weight" in names
