"""How far training is from PaddlePALM's recorded steps, with Adam's epsilon in its place and in torch's.

    python benchmarks/adam_epsilon.py

prints a table: the largest difference of any number of any parameter after steps 1 and 20 (but for the bias
of attention keys, whose gradient is 0), and of any of the 20 losses. It needs the recorded material.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from helpers.trainer_golden import published_training
from helpers.training_golden import RECORDED, SMALL, tiny_model, training, whole_differences

FIRST = {"nowarmup": 0.1, "nowarmup_wd0": 0.0, "nowarmup_smallgrad": 0.1, "warmup": 0.1}
LATER = ("const_lr_no_wd", "const_lr_wd0.1", "clip0.05_via_subclass")


def first_training(run: str, hat: bool) -> Iterator[tuple[float, float]]:
    """Per step of a run of PaddlePALM 0.2.1, the difference of the loss and of the parameters."""
    model = tiny_model(SMALL if run.endswith("smallgrad") else 1.0)
    for step, (loss, _) in enumerate(training(model, run, FIRST[run], hat), start=1):
        far = max(whole_differences(model, run, step).values()) if step in (1, 20) else 0.0
        yield abs(loss - float(RECORDED[f"{run}/loss"][step - 1])), far


def main() -> None:
    """Print the table."""
    rows = [("0.2.1", run, first_training) for run in FIRST]
    rows += [("2.0.2", run, published_training) for run in LATER]
    print("| recorded | run | epsilon | parameters, step 1 | parameters, step 20 | losses |")
    print("|---|---|---|---|---|---|")
    for version, run, steps in rows:
        for hat in (True, False):
            losses, far = zip(*steps(run, hat), strict=True)
            place = "before" if hat else "after"
            print(f"| {version} | {run} | {place} | {far[0]:.1e} | {far[-1]:.1e} | {max(losses):.1e} |")


if __name__ == "__main__":
    main()
