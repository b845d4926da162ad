"""`palm train` on bad input: one message with place and remedy, exit code 2, nothing half-written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers import tiny
from helpers.loaded import run_script
from palm.cli import main
from palm.controller.controller import Controller
from palm.core.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


class Run:
    """A configuration in files that can be spoilt, and the command on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = tiny.write_files(folder)
        self.settings = tiny.config(folder, "cls", "match", "mrc", num_epochs=1)
        self.tasks = self.settings.pop("tasks")

    def train(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """What `palm train` writes to stderr; it must exit with 2 and leave no half-written file."""
        self.write()
        before = {path for path in self.folder.rglob("*") if path.is_file()}
        code = main(["train", str(self.folder / "config.yaml"), "--task_dir", "tasks", *arguments])
        message = capsys.readouterr().err
        after = {path for path in self.folder.rglob("*") if path.is_file()}
        assert code == 2
        assert message.startswith("error: ")
        assert "Traceback" not in message
        of_a_run = {"resolved_config.yaml", "run.json", "history.jsonl", ".run.lock"}
        assert {path.name for path in after - before} <= of_a_run
        return message.replace(str(self.folder) + os.sep, "").replace("\\", "/")

    def write(self) -> None:
        (self.folder / "tasks").mkdir(exist_ok=True)
        write(self.folder / "config.yaml", self.settings)
        for name, settings in self.tasks.items():
            write(self.folder / "tasks" / f"{name}.yaml", settings)

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")


def write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def test_misspelt_keys_wrong_types_and_missing_files_come_in_one_report(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.tasks["cls"]["n_clases"] = run.tasks["cls"].pop("n_classes")
    run.settings["learning_rate"] = "fast"
    run.tasks["match"]["train_file"] = "nowhere.tsv"
    message = run.train(capsys, "--batch_sise", "8")
    assert re.search(r"tasks/cls\.yaml:5: .*'n_clases'.*'n_classes'", message)
    assert "tasks/cls.yaml: n_classes is missing" in message
    assert re.search(r"learning_rate .*number.*'fast'", message)
    assert "tasks/match.yaml:1: train_file: no such file: nowhere.tsv" in message
    assert "--batch_sise: nothing uses 'batch_sise'; did you mean 'batch_size'?" in message


def test_a_removed_setting_is_an_error_that_says_what_to_do(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    message = run.train(capsys, "--transfer_every_n_steps", "auto")
    assert re.search(r"--transfer_every_n_steps: .*leave it out.*palm compare", message)


def test_a_missing_column(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.replace("match.tsv", "text_b", "text_c")
    message = run.train(capsys)
    named = "the header lacks 'text_b'; it names label, text_a, text_c; rename 'text_c' to 'text_b'"
    named += ", or set columns: {text_b: text_c}"
    assert message == f"error: match.tsv:1: {named}\n"


def test_fewer_examples_than_a_batch(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    message = run.train(capsys, "--batch_size", "64")
    assert re.search(r"task 'cls': 40 .*batch_size .*64.* 40 ", message)


def test_a_vocabulary_that_does_not_fit_the_embedding_table(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run.folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.writelines(f"word{k}\n" for k in range(20))
    message = run.train(capsys)
    assert re.search(r" 55 .* 40 .*vocab_size", message)


def test_heads_that_do_not_divide_the_width(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.replace("backbone.json", '"num_attention_heads": 4', '"num_attention_heads": 5')
    expected = "error: backbone.json:1: num_attention_heads: 5 heads cannot share hidden_size 32"
    assert run.train(capsys).startswith(expected)


def test_sequences_longer_than_the_position_table(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    message = run.train(capsys, "--max_seq_len", "65")
    assert re.search(r"max_seq_len .*65.* 64 .*max_position_embeddings", message)


def test_a_loss_that_is_not_a_number(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    message = run.train(
        capsys,
        "--learning_rate",
        "1e30",
        "--warmup_proportion",
        "0",
        "--mix_ratio",
        "1,0.01,0.01",
        "--target_tag",
        "1,0,0",
    )
    first, last = message.splitlines()
    assert re.match(r"error: task 'cls' at its step 2 \(global step 2\): the loss is nan", first)
    assert [name in first for name in ("learning_rate", "warmup_proportion", "grad_clip")] == [True] * 3
    assert " out: " in last
    assert "step_" not in last


def test_a_save_path_that_cannot_be_written(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (run.folder / "taken").write_text("a file", encoding="utf-8")
    message = run.train(capsys, "--save_path", str(run.folder / "taken"))
    assert message.startswith("error: cannot write taken: ")


def test_a_checkpoint_of_another_configuration(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write()
    arguments = ["train", str(run.folder / "config.yaml"), "--task_dir", "tasks"]
    assert main([*arguments, "--save_every_n_steps", "5"]) == 0
    message = run.train(capsys, "--random_seed", "7", "--resume", "auto")
    assert "step_" in message
    assert "random_seed: 1 in the checkpoint, 7 in this run" in message


def test_a_checkpoint_that_is_not_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    message = run.train(capsys, "--resume", str(run.folder / "nowhere"))
    assert re.search(r"--resume .*nowhere.*auto", message)


def test_lists_of_another_length_than_the_tasks(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.settings["num_epochs"] = 0
    message = run.train(capsys, "--mix_ratio", "1,1", "--target_tag", "0,0,0", "--ema_decay", "1.5")
    assert re.search(r"config\.yaml:11: num_epochs .* 0\b", message)
    assert re.search(r"mix_ratio .* 2 .* 3 .*cls, match, mrc", message)
    assert "--target_tag" in message
    assert re.search(r"--ema_decay .* 1\.5", message)


def test_a_target_that_would_never_be_drawn(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"mix_ratio .*'match' .* 0 ", run.train(capsys, "--mix_ratio", "1,0,1"))


def test_a_target_with_no_expected_step(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"task 'match' .*mix_ratio .*0\.05", run.train(capsys, "--mix_ratio", "1,0.05,1"))


def test_an_unknown_component(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.tasks["cls"]["paradigm"] = "clas"
    message = run.train(capsys, "--backbone", "bart")
    assert re.search(r"tasks/cls.yaml:4: paradigm: .*'clas'.* mlm,", message)
    assert re.search(r"--backbone: .*'bart'.* bert, .* roberta.*'bert'", message)


def test_components_that_do_not_fit_together(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.tasks["cls"]["paradigm"] = "mlm"
    features, loss = run.train(capsys).splitlines()
    assert re.match(r"error: task 'cls': .*head .*'mask_pos' .*int64\[masks\].*backbone ", features)
    assert re.fullmatch(r"task 'cls': .*loss .*'mask_label' .*int64\[masks\].* label_ids", loss)


def test_predicting_without_a_model_or_a_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write()
    config = [str(run.folder / "config.yaml"), "--task_dir", "tasks"]
    assert main(["predict", *config, "--task", "cls"]) == 2
    assert re.search(r"infer_model.*save_path", capsys.readouterr().err)
    assert main(["predict", *config, "--task", "sentiment"]) == 2
    assert "'sentiment'" in capsys.readouterr().err
    assert main(["predict", *config, "--task", "cls", "--cls.pred_file", "nowhere.tsv"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["predict", "--model", "here"]) == 2
    assert "missing: --input, --output" in capsys.readouterr().err


def test_a_script_ends_with_the_message_and_exit_code_2(run: Run) -> None:
    run.tasks["cls"]["n_clases"] = 4
    run.write()
    script = run.folder / "demo.py"
    script.write_text(
        "import palm\npalm.Controller('config.yaml', task_dir='tasks').train()\n", encoding="utf-8"
    )
    status, output = run_script(script, run.folder, "--batch_sise=8")
    assert status == 2
    assert output.startswith("error: ")
    assert "tasks/cls.yaml:6: nothing uses 'n_clases'" in output.replace("\\", "/")
    assert "--batch_sise: nothing uses" in output
    assert "Traceback" not in output


@pytest.mark.skipif(os.name == "nt", reason="names of files are Unicode on Windows")
def test_a_name_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path: Path) -> None:
    tiny.write_files(tmp_path)
    strange = os.fsdecode(b"d\xffata")
    config = tiny.config(tmp_path, "cls", save_path=str(tmp_path / strange))
    (tmp_path / "cls.tsv").rename(tmp_path / strange)
    (tmp_path / "vocab.txt").rename(tmp_path / f"{strange}.txt")
    config |= {"vocab_path": str(tmp_path / f"{strange}.txt")}
    config["tasks"]["cls"] |= {"train_file": str(tmp_path / strange), "pred_file": None}
    with pytest.raises(ConfigError) as caught:
        Controller(config, argv=[])
    found = [line for line in caught.value.problems if "UTF-8" in line]
    assert [name for name in ("save_path", "vocab_path", "train_file") if name not in "".join(found)] == []
    assert all("\\udcff" in line for line in found)
