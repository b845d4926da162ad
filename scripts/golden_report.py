"""Compare palm with everything that was recorded from PaddlePALM, and print the differences.

    python scripts/golden_report.py

This runs the tests that compare with recorded values, on whole tensors if the recorded files are in a folder
`shared` beside the checkout. For each test it prints the number of compared values, their largest difference
(absolute, and relative to the largest value of the tensor), the tolerance, and the share of it that is used.
Tests that compare texts, ids and counts allow no difference. Missing files are skipped, with the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

GOLDEN = (
    "backbone/test_backbone.py::test_all_outputs_at_real_tokens_equal_the_originals",
    "paradigm/test_paradigm.py::test_predictions_losses_and_gradients_equal_the_originals",
    "paradigm/test_paradigm.py::test_predictions_and_losses_equal_those_of_paddlepalm_2",
    "paradigm/test_seq_label_golden.py",
    "paradigm/test_match_pairwise.py::test_scores_loss_and_gradients_equal_those_of_paddlepalm_2",
    "optimizer/test_optimizer.py::test_twenty_steps_follow_the_original",
    "optimizer/test_optimizer.py::test_every_number_of_every_tensor_follows_the_original",
    "optimizer/test_optimizer.py::test_losses_under_noam_follow_the_original",
    "engine/test_ema.py::test_averages_are_what_the_original_would_have_applied",
    "lr_sched/test_lr_sched.py::test_rates_are_those_of_2_x",
    "lr_sched/test_lr_sched.py::test_rates_are_those_of_0_2_1",
    "trainer/test_trainer_golden.py",
    "trainer/test_multi_head_trainer.py::test_steps_are_counted_as_in_the_original",
    "engine/test_sampling.py::test_expected_steps_are_those_of_the_original",
    "pretrained/test_pretrained.py::test_a_real_bert_equals_what_paddlepalm_made_of_it",
    "pretrained/test_pretrained.py::test_paddlepalms_pretrained_weights_load_completely",
    "reader/test_reader_golden.py",
    "reader/test_reader_golden_2x.py",
    "reader/test_tokenizer.py::test_tokens_equal_the_recorded_ones",
    "reader/test_tokenizer.py::test_a_vocabulary_file_is_read_as_the_original_reads_it",
    "metrics/test_metrics_golden.py",
)
"""Tests below `tests` that compare with recorded values, texts or ids."""


def main() -> int:
    """Return pytest's exit status: 0 if every difference is within its tolerance."""
    sys.path.insert(0, str(ROOT / "tests"))
    tests = [str(ROOT / "tests" / name) for name in GOLDEN]
    options = ["--no-header", "-p", "helpers.golden_report", "-c", str(ROOT / "pyproject.toml")]
    return int(pytest.main([*options, *sys.argv[1:], *tests]))


if __name__ == "__main__":
    sys.exit(main())
