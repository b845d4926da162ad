"""The manifests for clusters: the script of a Slurm array runs, the commands of the others are palm's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers import tiny
from palm.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_jobs_of_an_array_and_the_merge_give_the_predictions_of_one_job(folder: Path) -> None:
    tiny.controller(folder, "cls", "match", num_epochs=0.5).train()
    texts = [line.split("\t")[1] for line in (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()]
    (folder / "out").rename(folder / "output")
    (folder / "rows.tsv").write_text("\n".join(["text_a", *texts[1:]]) + "\n", encoding="utf-8")
    (folder / "palm").write_text(f'#!/bin/sh\nexec {sys.executable} -m palm "$@"\n', encoding="utf-8")
    (folder / "palm").chmod(0o755)
    script = (ROOT / "deploy" / "predict-slurm.sh").read_text(encoding="utf-8")
    script = script.replace("rows.jsonl", "rows.tsv").replace("/16", "/3")
    page = (ROOT / "docs" / "ray.md").read_text(encoding="utf-8")
    (merge,) = re.findall(r'--wrap "(.+)"', page)
    merge = merge.replace("rows.jsonl", "rows.tsv").replace("/16", "/3")
    alone = merge.replace("answers.jsonl", "alone.jsonl").replace(" --shard merge/3", "")
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    for job in ("2", "1", "3"):
        own = environment | {"SLURM_ARRAY_TASK_ID": job}
        subprocess.run(["bash", "-c", script], cwd=folder, env=own, check=True)
    for words in (merge, alone):
        subprocess.run(["bash", "-c", words], cwd=folder, env=environment, check=True)
    assert (folder / "answers.jsonl").read_bytes() == (folder / "alone.jsonl").read_bytes()
    assert len((folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()) == len(texts) - 1


def test_the_manifests_start_commands_that_palm_has() -> None:
    deploy = ROOT / "deploy"
    job = yaml.safe_load((deploy / "train-kuberay.yaml").read_text(encoding="utf-8"))["spec"]
    program, command, *words = shlex.split(job["entrypoint"])
    assert (program, command) == ("palm", "train")
    assert COMMANDS["train"].parser().parse_args(words).ray[0] == "workers=2,4"
    group = job["rayClusterSpec"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["maxReplicas"]) == (2, 4)
    task = yaml.safe_load((deploy / "train-skypilot.yaml").read_text(encoding="utf-8"))
    words = shlex.split(task["run"].partition("-m palm train")[2])
    options, settings = COMMANDS["train"].parser().parse_known_args(words)
    assert options.config == "config.yaml"
    assert settings[-2:] == ["--resume", "auto"]
