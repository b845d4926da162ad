"""Comparison of an interrupted run with an uninterrupted one, each in processes of its own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from palm.core.errors import PalmError
from palm.core.files.door import make_folder
from palm.core.invocation import START
from palm.core.logging import logger
from palm.engine.run.determinism import Recording, first_difference, read_recording


@dataclass(frozen=True)
class ResumeCheck:
    """The result of the comparison.

    Args:
        steps: made before the kill.
        more: made after it.
        difference: what differed first, and between which runs; None where nothing did.
        tensors: how many tensors were compared at the end.
    """

    steps: int
    more: int
    difference: str | None
    tensors: int

    def __str__(self) -> str:
        if self.difference is not None:
            return f"not identical: {self.difference}"
        return (
            f"identical: {self.steps} steps, a kill and {self.more} more are {self.steps + self.more} steps "
            f"without one: batches, losses and {self.tensors} tensors of weights and optimizer"
        )


def check_resume(words: Sequence[str], steps: int, more: int) -> ResumeCheck:
    """Train `steps + more` steps; then `steps`, a kill, and `more` from the checkpoint; and compare.

    `words` are CONFIG and the settings that follow it, as for `palm train`; files are temporary. Kernels
    add in a fixed order unless `words` say otherwise.
    """
    fixed = not any(word.startswith("--deterministic") for word in words)
    words = [*words, *(["--deterministic", "True"] if fixed else [])]
    with tempfile.TemporaryDirectory(prefix="palm-verify-resume-") as folder:
        place = Path(folder)
        last = steps + more
        logger.info("%d steps without a break", last)
        whole = _recorded(words, place / "whole", steps, last)
        logger.info("%d steps, then a kill", steps)
        before = _recorded(words, place / "parts", steps, last, killed_after=steps)
        logger.info("%d more steps from the checkpoint", more)
        after = _recorded(words, place / "parts", steps, last)
    beginning = first_difference(whole, before, range(1, steps + 1))
    if beginning is not None:
        reason = f"two runs from the beginning differ, without any kill: {beginning}"
        return ResumeCheck(steps, more, reason, 0)
    if min(after) != steps + 1:
        raise PalmError(f"after the kill the run went on from step {min(after) - 1}, not from step {steps}")
    rest = first_difference(whole, after, range(steps + 1, last + 1))
    kernels = (
        "" if fixed else " (on a GPU, deterministic: True tells a difference of kernels from one of palm's)"
    )
    return ResumeCheck(steps, more, rest and f"after the kill, {rest}{kernels}", len(whole[last]["tensors"]))


def _recorded(
    words: Sequence[str], folder: Path, steps: int, last: int, killed_after: int | None = None
) -> Recording:
    """Train in a process of its own, as `palm train` does, and read what it recorded."""
    make_folder(folder)
    # A process of its own: what one keeps in memory, generators and caches, must not survive the kill.
    number = len(list(folder.glob("*.jsonl")))
    record = folder / f"{number}.jsonl"
    command = [*START, "verify-resume", *words, "--record", str(record)]
    command += ["--steps", str(steps), "--more", str(last - steps)]
    command += [] if killed_after is None else ["--killed"]
    command += ["--save_path", str(folder / "out"), "--save_every_n_steps", str(steps), "--resume", "auto"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode and killed_after is None:
        raise PalmError(f"the run failed by itself:\n{done.stderr or done.stdout}")
    found = read_recording(record)
    needed = last if killed_after is None else steps
    if needed not in found:
        raise PalmError(f"the run ended after {max(found)} steps; give smaller --steps and --more")
    return found
