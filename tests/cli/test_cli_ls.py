"""`palm ls` and `palm completion`: what a configuration can name, on the screen and in a shell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from palm.cli import COMMANDS, main
from palm.mixing import MIXINGS


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["ls", *words]) == 0
    return capsys.readouterr().out


def test_all_kinds_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told([], capsys).splitlines()
    kinds = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert kinds == [
        *("reader", "paradigm", "backbone", "metrics", "mixing", "optimizer", "lr_scheduler", "balance")
    ]
    assert sum(line.startswith("  seq_label ") for line in lines) == 2


def test_a_component_is_reported_with_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(["mixing.temperature"], capsys)
    assert text.startswith("mixing.temperature: Between proportional and equal")
    assert "  mixing_temperature  (number, default 2.0)\n      T of the strategy temperature" in text
    assert "  in a configuration: mixing: temperature\n" in text
    assert told(["temperature"], capsys) == text
    assert told(["metrics.mse"], capsys).endswith("  no settings\n")
    assert "warmup_steps" not in told(["lr_scheduler.linear"], capsys)


def test_a_kind_is_listed_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in told(["mixing"], capsys).splitlines()] == ["mixing:", *MIXINGS]


def test_a_misspelt_name_is_reported_with_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "mixing.temprature"]) == 2
    error = capsys.readouterr().err
    assert "'mixing.temprature'" in error
    assert "'mixing.temperature'?" in error
    assert main(["ls", "batchsize"]) == 2
    assert "'batchsize'" in capsys.readouterr().err


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_settings_and_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "palm.bash").write_text(script("bash", capsys), encoding="utf-8")
    (tmp_path / "config.yaml").touch()

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("palm", *words))
        program = (
            f"source palm.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
            f"_shtab_palm palm '{words[-1]}' palm; echo ${{COMPREPLY[@]}}"
        )
        done = subprocess.run(
            ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert set(COMMANDS) <= set(completed(""))
    assert completed("che") == ["check"]
    assert completed("train", "--mixing_t") == ["--mixing_temperature"]
    assert completed("check", "config.yaml", "--stri") == ["--strict"]
    assert completed("ls", "mixing.t") == ["mixing.temperature"]
    assert completed("train", "conf") == ["config.yaml"]
    assert completed("plot", "--mixing_t") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_the_other_shells_know_the_same(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    assert all(word in text for word in (*COMMANDS, "mixing_cap", "no_measure", "mixing.temperature"))


def test_completion_without_shtab_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "palm-torch[completion]" in capsys.readouterr().err
