"""`backbone: auto` needs a directory and nothing else; what is saved needs nothing at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import tiny
from helpers.reader_files import write_text
from helpers.subword_files import CORPUS, write_byte_level, write_unigram_json
from palm import Controller, load_model
from palm.backbone.transformers import Transformers
from palm.core.errors import ConfigError, StorageError
from palm.pretrained.directory import read_directory, settings_of_directory
from palm.pretrained.loading import fill_backbone, load_backbone
from palm.pretrained.names import Renamed

transformers: Any = pytest.importorskip("transformers")

WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_model(folder: Path, kind: str) -> Path:
    """A directory as a user of transformers has it: a random encoder and its vocabulary."""
    torch.manual_seed(0)
    words = (tiny.SPECIAL, tiny.COLOURS, tiny.THINGS, tiny.NAMES, tiny.FILLERS)
    lines = [word for group in words for word in group]
    folder.mkdir(exist_ok=True)
    sizes = {**WIDTHS, "vocab_size": 400 if "roberta" in kind else len(lines), "max_position_embeddings": 66}
    texts = (folder.parent / "mlm.tsv").read_text(encoding="utf-8").splitlines() if "roberta" in kind else []
    if kind == "roberta":
        write_byte_level(folder, [*texts, *CORPUS])
        config = transformers.RobertaConfig(**sizes, type_vocab_size=1, layer_norm_eps=1e-5)
        transformers.RobertaModel(config).save_pretrained(folder)
        return folder
    if kind == "xlm-roberta":
        write_unigram_json(folder, [*texts, *CORPUS])
        config = transformers.XLMRobertaConfig(**sizes, type_vocab_size=1)
        transformers.XLMRobertaModel(config).save_pretrained(folder)
        return folder
    write_text(folder, "vocab.txt", "\n".join(lines) + "\n")
    if kind == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=len(lines), dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=66
        )
        transformers.DistilBertModel(config).save_pretrained(folder)
    else:
        config = transformers.ElectraConfig(**sizes, embedding_size=8)
        transformers.ElectraForPreTraining(config).save_pretrained(folder)
    return folder


def auto(folder: Path, model: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    """A run's configuration that says nothing of its backbone but where it is."""
    config = tiny.config(folder, *tasks, backbone="auto", pretrain_path=str(model), num_epochs=0.5)
    del config["backbone_config_path"], config["vocab_path"]
    return {**config, "max_seq_len": 48, "use_gpu": False, **settings}


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "distilbert", "electra"])
def test_a_run_needs_a_directory_alone_and_its_model_needs_nothing(tmp_path: Path, kind: str) -> None:
    data = tiny.write_files(tmp_path, rows=24)
    model = write_model(tmp_path / "model", kind)
    controller = Controller(auto(data, model), argv=[])
    controller.train()
    predicted = {task: list(controller.pred(task)) for task in ("cls", "match")}
    assert len(predicted["cls"]) == 24
    answers = controller.pred("mrc")
    assert set(answers) == {f"q{k}" for k in range(24)}

    moved = shutil.copytree(tmp_path / "out" / "cls" / "infer_model", tmp_path / "elsewhere")
    shutil.rmtree(model)
    loaded = load_model(moved)
    texts = [line.split("\t")[1] for line in (data / "cls.tsv").read_text("utf-8").splitlines()[1:]]
    again = loaded.predict(texts)
    for record, before in zip(again, predicted["cls"], strict=True):
        assert record["probs"] == pytest.approx(before["probs"], abs=1e-3)  # labels of so short a run may tie
    files = {file.name for file in moved.iterdir()}
    vocabulary = "vocab.json" if "roberta" in kind else "vocab.txt"
    weights = {"model.safetensors", "heads.safetensors"}  # several targets are one model
    assert files == {"README.md", "config.json", "manifest.json", vocabulary, *weights}


def test_the_directory_gives_sizes_and_vocabulary_and_the_resolved_configuration_has_them(
    tmp_path: Path,
) -> None:
    data, model = tiny.write_files(tmp_path), write_model(tmp_path / "model", "distilbert")
    resolved = Controller(auto(data, model, "cls"), argv=[]).run.to_dict()
    assert resolved["global"]["backbone"] == "distilbert"
    assert resolved["backbone"]["hidden_size"] == 16
    assert resolved["tasks"]["cls"]["vocab_path"] == str(model / "vocab.txt")
    assert resolved["tasks"]["cls"]["do_lower_case"] is True
    shutil.rmtree(model)
    resolved["tasks"]["cls"]["vocab_path"] = str(data / "vocab.txt")
    assert Controller(resolved, argv=[]).run.backbone.settings["hidden_size"] == 16


def test_settings_of_the_run_win_over_the_directory(tmp_path: Path) -> None:
    data, model = tiny.write_files(tmp_path), write_model(tmp_path / "model", "distilbert")
    settings = {"do_lower_case": False, "vocab_path": str(data / "vocab.txt"), "hidden_dropout_prob": 0.3}
    run = Controller(auto(data, model, "cls", **settings), argv=[]).run
    assert run.tasks[0].reader.settings["vocab_path"] == data / "vocab.txt"
    assert run.tasks[0].reader.settings["do_lower_case"] is False
    assert run.backbone.settings["hidden_dropout_prob"] == 0.3
    assert run.backbone.settings["num_hidden_layers"] == 2


def test_pretrain_on_the_command_line_wins_over_the_files(tmp_path: Path) -> None:
    data, model = tiny.write_files(tmp_path), write_model(tmp_path / "model", "roberta")
    config = tiny.config(data, "cls", do_lower_case=True)
    run = Controller(config, argv=["--pretrain", str(model)]).run
    assert run.backbone.name == "roberta"
    assert run.settings.pretrain_path == model
    assert run.tasks[0].reader.settings["vocab_path"] == model / "vocab.json"
    assert run.tasks[0].reader.settings["do_lower_case"] is False


def test_prediction_does_not_need_the_directory(tmp_path: Path) -> None:
    data, model = tiny.write_files(tmp_path, rows=8), write_model(tmp_path / "model", "distilbert")
    config = auto(data, model, "cls", num_epochs=1)
    Controller(config, argv=[]).train()
    shutil.rmtree(model)
    assert len(Controller(config, for_train=False, argv=[]).pred("cls")) == 8


def test_a_model_of_our_own_starts_another_run(tmp_path: Path) -> None:
    data, model = tiny.write_files(tmp_path, rows=8), write_model(tmp_path / "model", "roberta")
    Controller(auto(data, model, "cls", num_epochs=1), argv=[]).train()
    first = tmp_path / "out" / "cls" / "infer_model"
    shutil.rmtree(model)
    run = Controller(auto(data, first, "cls", save_path=str(tmp_path / "second")), argv=[]).run
    assert run.backbone.name == "roberta"
    assert run.tasks[0].reader.settings["vocab_path"] == first / "vocab.json"


@pytest.mark.parametrize(
    ("files", "lower"),
    [
        ({"vocab.txt": "[PAD]\nthe\nred\n"}, True),
        ({"vocab.txt": "[PAD]\nthe\nParis\n"}, False),
        ({"vocab.txt": "[PAD]\nthe\n", "tokenizer_config.json": '{"do_lower_case": false}'}, False),
        ({"vocab.txt": "[PAD]\nParis\n", "tokenizer_config.json": '{"do_lower_case": true}'}, True),
        ({"vocab.txt": "[PAD]\nthe\n", "tokenizer_config.json": "{}"}, True),
    ],
)
def test_whether_to_lower_case_is_decided_by_the_settings_or_by_the_vocabulary(
    tmp_path: Path, files: dict[str, str], lower: bool
) -> None:
    model = write_model(tmp_path, "electra")
    for name, text in files.items():
        write_text(model, name, text)
    assert settings_of_directory(model)["do_lower_case"] is lower


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: shutil.rmtree(model), r"pretrain_path: no weights at .*model: it does not exist"),
        (lambda model: [file.unlink() for file in model.iterdir()], r"it is empty; .*model\.safetensors"),
        (lambda model: (model / "model.safetensors").unlink(), r"config\.json, vocab\.txt; "),
        (lambda model: (model / "config.json").unlink(), r"model has weights .*config\.json, "),
        (lambda model: write_text(model, "config.json", '{"model_type": "xlnet"}'), r"'xlnet'.* distilbert"),
        (lambda model: (model / "vocab.txt").unlink(), r"no such file: .*model/vocab\.txt"),
    ],
    ids=["no directory", "empty", "no weights", "no config", "unknown", "no vocabulary"],
)
def test_a_directory_that_does_not_tell_is_an_error_that_says_what_is_missing(
    tmp_path: Path, change: Any, message: str
) -> None:
    data, model = tiny.write_files(tmp_path), write_model(tmp_path / "model", "electra")
    change(model)
    with pytest.raises(ConfigError, match=message):
        Controller(auto(data, model, "cls"), argv=[])


def test_auto_without_a_directory_says_so(tmp_path: Path) -> None:
    config = auto(tiny.write_files(tmp_path), tmp_path, "cls")
    del config["pretrain_path"]
    with pytest.raises(ConfigError, match="backbone: 'auto' needs pretrain_path"):
        Controller(config, argv=[])


def test_a_weights_file_alone_gives_its_directory(tmp_path: Path) -> None:
    model = write_model(tmp_path, "electra")
    assert read_directory(model / "model.safetensors").settings["embedding_size"] == 8
    with pytest.raises(StorageError, match="nowhere"):
        read_directory(tmp_path / "nowhere")


@pytest.mark.parametrize("prefix", ["", "model.", "_orig_mod.model.", "0.auto_model."])
def test_an_honest_encoder_of_the_library_loads_under_any_wrapper(tmp_path: Path, prefix: str) -> None:
    """Most of its values are word embeddings, and few of its names are those of BERT."""
    torch.manual_seed(0)
    given = tiny.sizes(64, 2, 2, vocab_size=30522, intermediate_size=96, pad_token_id=0)
    config = transformers.ModernBertConfig(**given)
    model = transformers.ModernBertModel(config)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({prefix + name: value for name, value in weights.items()}, tmp_path / "model.safetensors")
    loaded = load_backbone(tmp_path)
    assert isinstance(loaded, Transformers)
    ours = loaded.model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in model.state_dict().items())


def test_names_that_no_encoder_has_are_an_error_with_them(tmp_path: Path) -> None:
    model = write_model(tmp_path, "bert")
    save_file({"decoder.block.0": torch.zeros(2)}, model / "model.safetensors")
    with pytest.raises(StorageError, match=r"decoder\.block\.0"):
        load_backbone(model)


def test_xlnet_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path, "electra")
    (model / "config.json").rename(model / "xlnet_config.json")
    content = json.loads((model / "xlnet_config.json").read_text(encoding="utf-8"))
    write_text(model, "xlnet_config.json", json.dumps({**content, "model_type": "xlnet"}))
    with pytest.raises(StorageError, match=r"config\.json.*'xlnet'"):
        read_directory(model)


@pytest.mark.parametrize("backbone", ["auto", "bert"])
@pytest.mark.parametrize("name", ["is_decoder", "add_cross_attention", "normalize_before"])
def test_a_setting_of_others_that_computes_otherwise_is_refused(
    tmp_path: Path, backbone: str, name: str
) -> None:
    folder = tiny.write_files(tmp_path / "run")
    model = write_model(tmp_path / "model", "bert")
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), name: True}), encoding="utf-8")
    given = tiny.config(folder, "cls", pretrain_path=str(model), backbone=backbone)
    with pytest.raises((ConfigError, StorageError), match=rf"config\.json: {name} is True"):
        Controller(given, argv=[]).load_pretrain()


def test_what_computes_otherwise_is_refused_for_random_weights_too(tmp_path: Path) -> None:
    file = tiny.write_files(tmp_path) / "backbone.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "is_decoder": True}), encoding="utf-8")
    given = tiny.config(tmp_path, "cls")
    with pytest.raises(ConfigError, match=r"backbone\.json:\d+: is_decoder is True"):
        Controller(given, argv=[])


def test_quantized_weights_are_refused(folder: Path) -> None:
    backbone = tiny.controller(folder, "cls").training().model.backbone
    weights = backbone.state_dict()
    weights["embeddings.word.weight"] = weights["embeddings.word.weight"].to(torch.int8)
    with pytest.raises(StorageError, match=r"int8, .* 1: embeddings\.word\.weight"):
        fill_backbone(backbone, Renamed("palm", weights, [], [], weights), folder)
