"""Comparison of an interrupted run with an uninterrupted one, each in its own processes."""

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
from palm.train.determinism import Recording, first_difference, read_recording


@dataclass(frozen=True)
class ResumeCheck:
    """The result of the comparison.

    Args:
        steps: steps before the kill.
        more: steps after it.
        difference: the first difference, and the runs that differ; None if there is none.
        tensors: number of tensors compared at the end.
    """

    steps: int
    more: int
    difference: str | None
    tensors: int

    def __str__(self) -> str:
        if self.difference is not None:
            return f"not identical: {self.difference}"
        return (
            f"identical: {self.steps} steps, a kill and {self.more} more steps equal "
            f"{self.steps + self.more} uninterrupted ones: batches, losses and {self.tensors} tensors of "
            "weights and optimizer"
        )


def check_resume(words: Sequence[str], steps: int, more: int) -> ResumeCheck:
    """Compare a run of `steps + more` steps with one that is killed after `steps` and resumed for `more`.

    `words` are CONFIG and settings, as for `palm train`; all files are temporary. Kernels are deterministic
    unless `words` contain that setting.
    """
    fixed = not any(word.startswith("--deterministic") for word in words)
    words = [*words, *(["--deterministic", "True"] if fixed else [])]
    with tempfile.TemporaryDirectory(prefix="palm-verify-resume-") as folder:
        place = Path(folder)
        last = steps + more
        logger.info("%d uninterrupted steps", last)
        whole = _recorded(words, place / "whole", steps, last)
        logger.info("%d steps, then a kill", steps)
        before = _recorded(words, place / "parts", steps, last, killed_after=steps)
        logger.info("%d more steps from the checkpoint", more)
        after = _recorded(words, place / "parts", steps, last)
    beginning = first_difference(whole, before, range(1, steps + 1))
    if beginning is not None:
        reason = f"two runs from the beginning differ even without a kill: {beginning}"
        return ResumeCheck(steps, more, reason, 0)
    if min(after) != steps + 1:
        raise PalmError(f"after the kill, the run resumed from step {min(after) - 1}, not from step {steps}")
    rest = first_difference(whole, after, range(steps + 1, last + 1))
    kernels = "" if fixed else " (on a GPU, set deterministic: True to rule out differences of kernels)"
    return ResumeCheck(steps, more, rest and f"after the kill, {rest}{kernels}", len(whole[last]["tensors"]))


def _recorded(
    words: Sequence[str], folder: Path, steps: int, last: int, killed_after: int | None = None
) -> Recording:
    """Train in a new process, like `palm train`, and read its recording."""
    make_folder(folder)
    # State in memory, such as generators and caches, must not survive the kill.
    number = len(list(folder.glob("*.jsonl")))
    record = folder / f"{number}.jsonl"
    command = [*START, "verify-resume", *words, "--record", str(record)]
    command += ["--steps", str(steps), "--more", str(last - steps)]
    command += [] if killed_after is None else ["--killed"]
    command += ["--save_path", str(folder / "out"), "--save_every_n_steps", str(steps), "--resume", "auto"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode and killed_after is None:
        raise PalmError(f"the run failed:\n{done.stderr or done.stdout}")
    found = read_recording(record)
    needed = last if killed_after is None else steps
    if needed not in found:
        raise PalmError(f"the run ended after {max(found)} steps; give smaller --steps and --more")
    return found
