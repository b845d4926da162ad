"""A directory is data: opening one runs no code of its own, and reads nothing outside of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import palm
from helpers import saved, tiny
from palm.cli import main
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.pretrained.directory import settings_of_directory
from palm.reader import READERS

TROJAN = "open('ran', 'w')\nclass Reader: pass\n"
"""A module that leaves a trace when it is imported."""

OWN = """
from palm.reader import ClassifyReader


class OwnReader(ClassifyReader):
    pass


def not_a_class(**settings):
    open('ran', 'w')
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with modules in it that nobody has imported; what is imported is forgotten."""
    (tmp_path / "trojan.py").write_text(TROJAN, encoding="utf-8")
    (tmp_path / "ownparts.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trojan", "ownparts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def named(part: str, name: str, **settings: Any) -> Callable[[Any], Any]:
    """What makes a description name another class."""

    def change(described: dict[str, Any]) -> dict[str, Any]:
        return {**described, part: {"name": name, "settings": settings or described[part]["settings"]}}

    return change if part == "backbone" else saved.in_task(change)


FOREIGN = ["os.system", "trojan.Reader", "builtins.exec", "subprocess.Popen", "palm.load_model"]
FOREIGN += ["x", "", ".", "a..b"]


@pytest.mark.parametrize("part", ["reader", "backbone", "paradigm"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_saved_model_runs_no_function_that_it_names(folder: Path, part: str, name: str) -> None:
    model = saved.forge(saved.model(folder), "config.json", named(part, name, command="touch ran"))
    kind = {"paradigm": "head"}.get(part, part)
    with pytest.raises(StorageError, match=rf"{kind} {name!r}"):
        palm.load_model(model)
    for command in (
        ["predict", "--model", str(model), "--input", "cls.tsv", "--output", "out"],
        ["evaluate", "--model", str(model), "--input", "cls.tsv"],
        ["export", str(model), "--output", "hf", "--to", "hf"],
    ):
        assert main(command) == 2
    assert not (folder / "ran").exists()
    assert "trojan" not in sys.modules


@pytest.mark.parametrize("name", FOREIGN)
def test_a_directory_to_start_from_builds_palms_own_encoders_only(folder: Path, name: str) -> None:
    model = saved.forge(saved.model(folder), "config.json", named("backbone", name, command="touch ran"))
    for open_it in (palm.load_backbone, settings_of_directory, palm.inspect_directory):
        if open_it is not palm.inspect_directory:  # which builds nothing
            with pytest.raises(StorageError, match="only palm's own"):
                open_it(model)
    with pytest.raises(StorageError, match="only palm's own"):
        palm.convert(model, folder / "hf")
    config = tiny.config(folder, "cls", backbone="auto", pretrain_path=str(model))
    with pytest.raises(ConfigError, match="only palm's own"):
        Controller(config, argv=[])
    assert not (folder / "ran").exists()


def test_not_even_a_class_of_the_program_is_built_from_a_directory_to_start_from(folder: Path) -> None:
    class Encoder(palm.backbone.BERT):
        pass

    globals()["Encoder"] = Encoder
    model = saved.forge(saved.model(folder), "config.json", named("backbone", f"{__name__}.Encoder"))
    with pytest.raises(StorageError, match="only palm's own"):
        palm.load_backbone(model)


@pytest.mark.parametrize(
    "settings", [{"train_file": "x"}, {"reader": "os.system"}, {"metrics": ["os.system"]}, {"x": 1}]
)
def test_a_directory_to_start_from_sets_nothing_but_its_encoder(folder: Path, settings: Any) -> None:
    model = saved.model(folder)
    saved.forge(model, "config.json", lambda d: {**d, "backbone": {"name": "bert", "settings": settings}})
    with pytest.raises(StorageError, match=rf"bert .*'{next(iter(settings))}'"):
        settings_of_directory(model)


def test_the_backbones_json_names_neither_code_nor_files(folder: Path) -> None:
    tiny.write_files(folder)
    told = {**tiny.BACKBONE, "metrics": ["trojan.Reader"], "dev_file": str(folder / "cls.tsv")}
    (folder / "backbone.json").write_text(json.dumps(told), encoding="utf-8")
    controller = tiny.controller(folder, "cls")
    assert controller.run.tasks[0].settings.metrics is None
    assert controller.run.tasks[0].settings.dev_file is None
    assert not (folder / "ran").exists()


def test_a_class_is_trusted_by_the_path_of_its_module_package_or_itself(folder: Path) -> None:
    model = saved.forge(saved.model(folder), "config.json", named("reader", "ownparts.OwnReader"))
    with pytest.raises(StorageError, match=r"trust=\['ownparts'\]"):
        palm.load_model(model)
    with pytest.raises(ConfigError, match=r"trust should be .*, not True"):
        palm.load_model(model, trust=True)  # type: ignore[arg-type]
    for other in ("own", "ownparts.Own", "ownparts.OwnReader.x", ""):
        with pytest.raises(StorageError, match="names the reader '"):
            palm.load_model(model, trust=other)
    assert "ownparts" not in sys.modules
    loaded = palm.load_model(model, trust=["ownparts"])
    assert type(loaded.reader).__name__ == "OwnReader"
    words = ["predict", "--model", str(model), "--input", "cls.tsv", "--output", "out"]
    assert main([*words, "--trust", "ownparts.OwnReader"]) == 0


def test_what_the_running_program_has_imported_is_its_own(folder: Path) -> None:
    model = saved.forge(saved.model(folder), "config.json", named("reader", "ownparts.OwnReader"))
    import ownparts

    assert type(palm.load_model(model).reader) is ownparts.OwnReader


def test_a_configuration_may_predict_with_the_components_that_it_names(folder: Path) -> None:
    tiny.write_files(folder)
    config = tiny.config(folder, "cls", num_epochs=1)
    config["tasks"]["cls"]["reader"] = "ownparts.OwnReader"
    Controller(config, argv=[]).train()
    del sys.modules["ownparts"]
    assert len(Controller(config, for_train=False, argv=[]).pred("cls")) == 40


@pytest.mark.parametrize("name", ["ownparts.not_a_class", "ownparts.ClassifyReader.read", "trojan.Reader"])
def test_trust_in_a_module_is_trust_in_its_components_only(folder: Path, name: str) -> None:
    model = saved.forge(saved.model(folder), "config.json", named("reader", name))
    with pytest.raises(PalmError, match=r"palm\.reader\.base\.Reader|cannot"):
        palm.load_model(model, trust=["ownparts", "trojan"])
    assert "not_a_class" not in name or not (folder / "ran").exists()


def test_a_component_of_another_kind_is_refused_before_it_is_built(folder: Path) -> None:
    with pytest.raises(PalmError, match=r"'os\.system'"):
        READERS["os.system"]
    with pytest.raises(PalmError, match=r"the reader 'palm\.paradigm\.Classify'"):
        READERS["palm.paradigm.Classify"]
    head = named("reader", "palm.paradigm.class_head.Classify")
    model = saved.forge(saved.model(folder), "config.json", head)
    with pytest.raises(StorageError, match="names the reader '"):
        palm.load_model(model)


def test_attributes_of_modules_are_not_computed(folder: Path) -> None:
    (folder / "trojan.py").write_text("def __getattr__(name):\n    open('ran', 'w')\n", encoding="utf-8")
    import trojan  # noqa: F401

    model = saved.forge(saved.model(folder), "config.json", named("reader", "trojan.Reader"))
    with pytest.raises(StorageError, match="names the reader '"):
        palm.load_model(model)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seq_len": 8, "vocab_path": {"file": "vocab.txt"}, "evil": 1}, "keyword argument 'evil'"),
        ({"max_seq_len": 8}, "missing .* argument: 'vocab_path'"),
        ({"max_seq_len": [8], "vocab_path": {"file": "vocab.txt"}}, "the reader that .* describes"),
        ({"max_seq_len": 8, "task_id": [], "vocab_path": {"file": "vocab.txt"}}, "task_id should be a whole"),
        ({"max_seq_len": 8, "vocab_path": 7}, "the reader that .* describes"),
        ({"max_seq_len": 8, "vocab_path": "vocab.txt"}, "should be a file .* 'vocab.txt'"),
        ({"max_seq_len": 8, "vocab_path": {"file": "vocab.txt"}, "label_map": "/etc/passwd"}, "be a file"),
        ({"max_seq_len": 8, "vocab_path": {"file": "lost.txt"}}, "lost.txt is missing"),
        ({"max_seq_len": 8, "vocab_path": {"file": 7}}, "the file 7, .* outside"),
    ],
)
def test_settings_are_data_too(folder: Path, settings: Any, message: str) -> None:
    with pytest.raises((StorageError, ConfigError), match=message):
        palm.load_model(saved.forge(saved.model(folder), "config.json", named("reader", "cls", **settings)))


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../vocab.txt", "a/../../vocab.txt", "C:\\x", "a\\b", "link", "", "a\0"]
)
def test_files_stay_inside(folder: Path, path: str) -> None:
    model = saved.model(folder)
    (model / "link").symlink_to(folder / "vocab.txt")
    change = named("reader", "cls", max_seq_len=8, vocab_path={"file": path})
    with pytest.raises(StorageError, match=r"unsafe|damaged"):
        palm.load_model(saved.forge(model, "config.json", change))
    saved.forge(saved.model(folder / "other"), "config.json", change)
    (folder / "other" / "model" / "link").symlink_to(folder / "vocab.txt")
    with pytest.raises(StorageError, match=r"is unsafe|is damaged"):
        palm.pretrained.directory.read_directory(folder / "other" / "model")


def test_a_model_in_the_cache_of_hugging_face_consists_of_links(folder: Path) -> None:
    model = saved.model(folder)
    blobs, snapshot = folder / "hub" / "blobs", folder / "hub" / "snapshots" / "1a2b"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    assert palm.load_model(snapshot).task == "colour"


def test_a_checkpoint_runs_nothing_either(folder: Path) -> None:
    def change(task: Any) -> Any:
        return {**task, "reader": {**task["reader"], "name": "trojan.Reader"}}

    checkpoint = saved.forge(saved.checkpoint(folder), "config.json", saved.in_task(change))
    with pytest.raises(StorageError, match="names the reader '"):
        palm.load_model(checkpoint)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("part", "sizes"),
    [
        ("backbone", {"num_hidden_layers": 10**9}),
        ("backbone", {"vocab_size": 10**9}),
        ("backbone", {"hidden_size": 2**40, "num_attention_heads": 1}),
        ("backbone", {"max_position_embeddings": 10**15}),
        ("paradigm", {"n_classes": 10**10}),
        ("paradigm", {"n_classes": 10**30}),
    ],
)
def test_a_wrong_size_costs_nothing(folder: Path, part: str, sizes: dict[str, int]) -> None:
    def change(described: Any) -> Any:
        described[part]["settings"] |= sizes
        return described

    made = change if part == "backbone" else saved.in_task(change)
    model = saved.forge(saved.model(folder), "config.json", made)
    message = r"more parameters than the \d+ saved tensors|whole number, . or more, at most 2147483647"
    with pytest.raises(PalmError, match=rf"the (backbone|head) that .*model describes: .*({message})"):
        palm.load_model(model)
    if part == "backbone":
        for read in (palm.load_backbone, settings_of_directory):
            with pytest.raises(PalmError, match=rf"config\.json: .*({message})"):
                read(model)


def test_a_component_of_the_program_that_is_built_elsewhere_is_not_counted() -> None:
    from threading import Thread

    from palm.core.device import within_weights

    with within_weights({}, "here"):
        other = Thread(target=lambda: torch.nn.Linear(1000, 2000))
        other.start()
        other.join()
        torch.nn.Linear(1000, 1000)
        with pytest.raises(StorageError, match=r"here: .* Linear\.weight is \[1000, 1000\]|here: "):
            torch.nn.Linear(1000, 1000)
    torch.nn.Linear(1000, 2000)


def test_only_the_owner_of_nothing(folder: Path) -> None:
    """Files of a saved model may be read by whom the umask lets read."""
    before = os.umask(0o027)
    try:
        model = saved.model(folder)
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in model.iterdir()} == {oct(0o640)}


def test_names_of_others_do_not_steer_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b]0;evil\x07\x9b31m"
    save_file({name: torch.zeros(1), "word_embedding": torch.zeros(5, 2)}, folder / "model.safetensors")
    sizes = {**saved.SIZES, "vocab_size": 5, "architectures": [name, "漢"], "id2label": {"0": "漢\x9b"}}
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "]0;evil" in shown
    assert "漢" in shown
    assert shown.replace("\n", "").isprintable()
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == name
    assert main(["inspect", str(folder / name)]) == 2
    assert "there is no directory" in (error := capsys.readouterr().err)
    assert "\x1b" not in error
