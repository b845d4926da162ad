"""Several processes are one with the larger batch: losses, weights, predictions; and nobody waits forever."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from safetensors.torch import load_file

import palm
from helpers import ranks, tiny
from helpers.equal import differing
from helpers.loaded import run_script
from helpers.ports import free_port, wait_for
from palm.controller.controller import Controller
from palm.core import group
from palm.core.group import is_launched, launch, split_among_ranks
from palm.core.process import START, program
from palm.train.checkpoint import newest_checkpoint

ROOT = Path(__file__).resolve().parents[2]
HELPERS = ROOT / "tests" / "helpers"
RANKS = str(HELPERS / "ranks.py")
FRAGILE = str(HELPERS / "fragile.py")
PALM = str(HELPERS / "command.py")


def torchrun(folder: Path, *words: str, **variables: str) -> tuple[int | None, str]:
    """Launch a program with its output in a folder; its exit status, and what all processes wrote."""
    folder.mkdir(exist_ok=True)
    return run_script(HELPERS / "torchrun.py", folder, *words, **variables)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, 8 rows a step."""
    folder = tmp_path_factory.mktemp("one")
    ranks.write_files(folder)
    (folder / "rank0.json").write_text(json.dumps(ranks.run(folder, 1)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, one: Path) -> Path:
    """Two processes, 4 rows a step each."""
    folder = tmp_path_factory.mktemp("two")
    ranks.write_files(folder)
    shutil.copytree(one / "out" / f"step_{ranks.SAVED}", folder / "others" / "one")
    status, output = torchrun(folder, "--standalone", "--nproc-per-node=2", RANKS, str(folder), "2")
    assert status == 0, output
    return folder


def recorded(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    return found


def seen(folder: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
    return found


# The gradient of the biases of start and end logits is 0 but for rounding, because a softmax does not
# feel what is added to all logits; Adam makes steps of any size of it.
UNFELT = "heads.@mrc.out.bias"


TOGETHER = ["together", "balanced", "lora"]
LIBRARY = ["library", "library_checkpointed"] if find_spec("transformers") else []


@pytest.mark.parametrize("parallel", ["ddp", "averaged", "parts", "pairs", *TOGETHER, *LIBRARY])
def test_two_processes_lose_and_weigh_what_one_with_the_double_batch_does(
    one: Path, two: Path, parallel: str
) -> None:
    alone, together = recorded(one, parallel), recorded(two, parallel)
    assert [task for task, _ in together["losses"]] == [task for task, _ in alone["losses"]]
    # An untrained encoder gives all texts nearly one vector, of which the loss of pairs takes differences.
    within, of_norms = (2e-5, 1e-2) if parallel == "pairs" else (2e-6, 1e-4)
    for (_, expected), (_, loss) in zip(alone["losses"], together["losses"], strict=True):
        assert loss == pytest.approx(expected, abs=within)
    assert together["weights"].keys() == alone["weights"].keys()
    for name in alone["weights"].keys() - {UNFELT}:
        torch.testing.assert_close(together["weights"][name], alone["weights"][name], atol=within, rtol=0)
    assert together["norms"] == pytest.approx(alone["norms"], rel=of_norms)


def test_two_processes_have_the_averages_of_one(one: Path, two: Path) -> None:
    alone, together = recorded(one, "averaged")["averages"], recorded(two, "averaged")["averages"]
    assert together.keys() == alone.keys()
    for name in alone.keys() - {UNFELT}:
        torch.testing.assert_close(together[name], alone[name], atol=2e-6, rtol=0)


@pytest.mark.parametrize("parallel", ["ddp", "averaged"])
def test_dev_data_is_shared_out_and_every_row_counts_once(one: Path, two: Path, parallel: str) -> None:
    alone, together = recorded(one, parallel)["evaluations"], recorded(two, parallel)["evaluations"]
    assert len(together) > 3
    assert together == alone
    assert seen(two)["dev_loss"] == pytest.approx(seen(one)["dev_loss"], rel=1e-5)


def test_a_checkpoint_of_two_continues_in_one_and_of_one_in_two(
    one: Path, two: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the same 8 rows a step, it ends where the runs end that nobody interrupted."""
    checkpoint = str(two / "out" / f"step_{ranks.SAVED}")
    with caplog.at_level("INFO", "palm"):
        Controller(ranks.config(one, "resumed_two", 1, resume=checkpoint), argv=[]).train()
    assert f"at global step {ranks.SAVED}" in caplog.text
    for resumed in (one / "resumed_two", two / "resumed_one"):
        for task in ranks.TASKS:
            assert_same_model(resumed / task / "infer_model", one / "out" / task / "infer_model")


def test_a_checkpoint_of_two_continues_in_four(one: Path, two: Path, tmp_path: Path) -> None:
    ranks.write_files(tmp_path)
    shutil.copytree(two / "out" / f"step_{ranks.SAVED}", tmp_path / "others" / "two")
    words = ("--standalone", "--nproc-per-node=4", RANKS, str(tmp_path), "4", "resume")
    status, output = torchrun(tmp_path, *words)
    assert status == 0, output
    for task in ranks.TASKS:
        assert_same_model(tmp_path / "resumed_two" / task / "infer_model", one / "out" / task / "infer_model")


def test_with_other_rows_in_a_step_a_run_does_not_continue(two: Path) -> None:
    # Two devices had 4 rows each.
    config = ranks.config(two, "slower", 1, batch_size=4, resume=str(two / "out" / f"step_{ranks.SAVED}"))
    with pytest.raises(palm.StorageError, match=r"cls\.devices: 2 .* 1 "):
        Controller(config, argv=[]).train()


def assert_same_model(folder: Path, other: Path, atol: float = 2e-6) -> None:
    for file in ("model.safetensors", "heads.safetensors"):
        ours, theirs = (load_file(place / file) for place in (folder, other))
        assert ours.keys() == theirs.keys()
        for name in ours:
            if not (
                name.startswith("heads.") and name.endswith(".out.bias")
            ):  # that of mrc is unfelt, as above
                torch.testing.assert_close(ours[name], theirs[name], atol=atol, rtol=0)


def test_stages_on_two_processes_are_those_of_one(one: Path, two: Path) -> None:
    """Joint, alone and from another stage: equal weights after every stage."""
    stages = sorted(place.name for place in (one / "staged" / "stages").iterdir())
    assert stages == ["1-joint", "2-cls", "3-last"]
    for stage in stages:
        folders = [place / "staged" / "stages" / stage / "weights" for place in (two, one)]
        # Three stages in a row: 2.3e-6 was seen on a CPU without AVX-512.
        assert_same_model(*folders, atol=5e-6)
    for task in ranks.TASKS:
        assert_same_model(*(place / "staged" / task / "infer_model" for place in (two, one)), atol=5e-6)


def test_gradients_that_are_accumulated_are_exchanged_once(two: Path) -> None:
    exchanges = seen(two)["exchanges"]
    assert exchanges["parts"] == exchanges["ddp"] > 0


def test_gradients_are_averaged_whichever_ranks_have_them(two: Path) -> None:
    here = seen(two)["exchanged"]
    assert here == [
        [0.5, 1.0, None, None],
        [0.5, None, 1.0, None],
        [1.0, 0.5, None, None],
        [1.0, None, None, 0.5],
        [1.5, None, None, None],
    ]


def test_files_of_predictions_are_those_of_one_process_byte_for_byte(two: Path, tmp_path: Path) -> None:
    for task in (*ranks.TASKS, "one"):
        folder = two / "out" / ("cls/infer_model" if task == "one" else task)
        model = palm.load_model(folder, precision="fp32")
        model.batch_size = 4 if task == "one" else 3
        data = {"mrc": "mrc.json"}.get(task, f"{task}.tsv")
        model.predict_file(two / data, tmp_path / task)
        for file in (tmp_path / task).glob("[!.]*"):
            assert file.read_bytes() == (two / "out" / task / file.name).read_bytes(), file


def test_every_rank_can_read_all_predictions(two: Path) -> None:
    expected = [ranks.ROWS] * 3 + [1]
    assert [seen(two, rank)["counts"] for rank in (0, 1)] == [expected, expected]
    assert [seen(two, rank)["ranks"] for rank in (0, 1)] == [2, 2]


def test_a_trainer_s_batch_size_is_that_of_all_devices(one: Path, two: Path) -> None:
    losses, labels = seen(one)["trainer"]
    for rank in (0, 1):
        theirs, predicted = seen(two, rank)["trainer"]
        assert theirs == pytest.approx(losses, abs=1e-5)
        assert [each["label"] for each in predicted] == [each["label"] for each in labels]


def test_only_the_first_process_reports(two: Path) -> None:
    lines = (two / "output.txt").read_text(encoding="utf-8").splitlines()
    assert lines.count("cls: train finished!") == 4  # of two runs, and of two stages of a third


@pytest.mark.parametrize("door", ["model", "config"])
def test_palm_evaluate_on_two_processes_tells_the_scores_of_one_process_once(
    one: Path, tmp_path: Path, door: str
) -> None:
    model, data = one / "out" / "cls" / "infer_model", one / "cls.tsv"
    expected = palm.load_model(model, device="cpu").evaluate(data)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**ranks.config(one, "out", 2), "device": "cpu"}), encoding="utf-8")
    words = ["--model", str(model), "--input", str(data), "--device", "cpu"]
    if door == "config":
        words = [str(config), "--task", "cls", "--inference_model_dir", str(model)]
    status, output = torchrun(tmp_path, "--standalone", "--nproc-per-node=2", PALM, "evaluate", *words)
    assert status == 0, output
    [said] = [line for line in output.splitlines() if line.startswith("{")]
    assert json.loads(said) == (expected if door == "model" else {"cls": expected})


def test_a_run_outlives_a_killed_process_and_one_that_hangs(two: Path, tmp_path: Path) -> None:
    """It continues from its last checkpoint, and ends with the very weights of a run without accidents."""
    words = ("--standalone", "--nproc-per-node=2", "--max-restarts=2", FRAGILE, str(two), "fragile")
    status, output = torchrun(tmp_path, *words)
    assert status == 0, output
    resumed = [line for line in output.splitlines() if line.startswith("resumed from")]
    assert [line.rpartition(" ")[2] for line in resumed] == ["9", "18"]
    assert "rank 0 of 2 timed out waiting for another rank at global step 21" in output
    assert "Ranks 1 failed to pass monitoredBarrier" in output
    assert_identical_models(two / "fragile", two / "out")


@pytest.mark.skipif(os.name == "nt", reason="torchrun on several machines needs a POSIX system")
def test_a_machine_that_goes_away_is_replaced_by_another(two: Path, tmp_path: Path) -> None:
    port = free_port()
    words = (
        *("--nnodes=2", "--nproc-per-node=1", "--max-restarts=2"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=lost"),
        *("--rdzv-conf=keep_alive_interval=1,join_timeout=120", "--local-addr=localhost"),
        *(FRAGILE, str(two), "machines"),
    )
    plain = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(torchrun, tmp_path / "first", *words, **plain)
        wait_for(port)
        status, output = torchrun(tmp_path / "doomed", *words, **plain, DOOMED="1")
        assert status == -signal.SIGKILL, output
        time.sleep(5)  # until the other machine's launcher has noticed
        status, output = torchrun(tmp_path / "other", *words, **plain)
    assert status == 0, output
    assert f"at global step {ranks.SAVED}" in first.result()[1]
    assert_identical_models(two / "machines", two / "out")


def assert_identical_models(run: Path, other: Path) -> None:
    for task in ranks.TASKS:
        files = (place / task / "infer_model" / "model.safetensors" for place in (run, other))
        assert differing(*map(load_file, files)) == []


def test_a_program_that_starts_itself_and_ends_right_after_an_exchange_ends_well(tmp_path: Path) -> None:
    """Gloo's thread may still hold the exchanged tensor, and must not ask for it when Python is gone."""
    status, output = run_script(HELPERS / "leaving.py", tmp_path, PYTHONPATH=str(ROOT))
    assert status == 0, output
    assert output.splitlines().count("2 devices: starting one process for each") == 1
    assert output.splitlines().count("left the group") == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows does not tell that a parent process has died")
def test_processes_whose_launcher_is_killed_end_with_a_checkpoint(folder: Path) -> None:
    # Without an end it takes minutes.
    settings = tiny.config(folder, "cls", num_devices=2, device="cpu", num_epochs=2000)
    (folder / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    words = [*START, "train", str(folder / "config.yaml")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as launcher:
        assert launcher.stdout is not None
        assert not read(launcher.stdout, b"Global step: 20").endswith(CLOSED)
        launcher.kill()
        text = read(launcher.stdout, CLOSED)
    assert text.endswith(CLOSED)
    assert b"SIGTERM: stopping after the current step" in text
    assert b"Traceback" not in text
    checkpoint = newest_checkpoint(folder / "out")
    assert checkpoint is not None
    assert 20 <= int(checkpoint.name.removeprefix("step_")) < 10_000


CLOSED = b"<closed>"


def read(stream: IO[bytes], last: bytes) -> bytes:
    """Read, for at most a minute, until something comes or all processes have closed the stream."""
    said, until = b"", time.monotonic() + 60
    while last not in said and select.select([stream], [], [], max(0, until - time.monotonic()))[0]:
        said += os.read(stream.fileno(), 1 << 16) or CLOSED
        if said.endswith(CLOSED):
            break
    return said


def test_an_earlier_run_in_the_folder_is_told_without_a_traceback(folder: Path) -> None:
    settings = tiny.config(folder, "cls", num_hidden_layers=1, num_devices=2, device="cpu", max_steps=2)
    settings.pop("overwrite")
    (folder / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    command = ["train", str(folder / "config.yaml")]
    for _ in ("trains", "returns its result on all ranks"):
        status, output = torchrun(folder, "--standalone", "--nproc-per-node=2", PALM, *command)
        assert status == 0, output
    status, output = run_script(Path(PALM), folder, *command, "--learning_rate", "0.5")
    assert status == 2, output
    assert f"error: save_path: {folder / 'out'} holds a finished run" in output
    assert "Traceback" not in output


def test_a_process_that_cannot_reach_the_others_is_an_error_of_palm(monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(palm.TrainingError, match=rf"rank 1 of 2.*localhost:{port}.*process_group_timeout"):
        group.join(torch.device("cpu"), timeout=1)


def test_a_checkpoint_with_other_batches_on_the_same_devices_is_refused(folder: Path) -> None:
    run = tiny.config(folder, "cls", num_epochs=1, save_every_n_steps=5)
    Controller(run, argv=[]).train()
    other = {**run, "batch_size": 5, "resume": str(folder / "out" / "step_5")}
    with pytest.raises(palm.StorageError, match=r"cls\.batch_size\D*4\D*5"):
        Controller(other, argv=[]).train()
    parts = {**run, "batch_size": 2, "gradient_accumulation_steps": 2, "resume": other["resume"]}
    Controller(parts, argv=[]).train()


def test_what_is_dealt_out_goes_to_everybody_equally_often_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hands = []
    for rank in range(3):
        monkeypatch.setattr("palm.core.group.rank", lambda rank=rank: rank)
        monkeypatch.setattr("palm.core.group.world_size", lambda: 3)
        hands.append(split_among_ranks("abcdefg"))
    assert hands == [["a", "d", "g"], ["b", "e", "g"], ["c", "f", "g"]]


def test_a_program_is_started_again_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/demo.py", "--batch_size", "8"])
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    assert program() == ["/x/demo.py"]
    monkeypatch.setattr(main, "__spec__", type("Spec", (), {"name": "palm.__main__"}))
    assert program() == ["-m", "palm"]


def test_several_devices_need_a_program_and_enough_of_them() -> None:
    assert not is_launched()
    cpu = torch.device("cpu")
    launch(cpu, "auto")
    launch(cpu, 1)
    with pytest.raises(palm.ConfigError, match=r"num_devices: 2"):
        launch(cpu, 2)
    with pytest.raises(palm.ConfigError, match=r"num_devices.*auto.*0"):
        launch(cpu, 0)
    with pytest.raises(palm.ConfigError, match=r"num_devices.*64.*\d"):
        launch(torch.device("cuda"), 64)
