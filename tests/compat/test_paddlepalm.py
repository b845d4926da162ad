"""Programs that import PaddlePALM by its own name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from palm.compat.distribute import data_feeder, decode_fake, yield_pieces


def test_programs_of_2_x_run_with_their_own_import_line() -> None:
    program = """
import paddlepalm.reader.base_reader
from paddlepalm.head.base_head import Head
from paddlepalm.lr_sched import TriangularSchedualer
import paddlepalm as of_2x
from palm import Controller, compat

assert of_2x is compat
assert of_2x.reader.base_reader is compat.reader.base_reader
assert Head is compat.head.base_head.Head
assert of_2x.Controller is Controller
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


# `palm.distribute`: pieces of batches, fed in groups, and what of the last group is repetition.


def test_a_batch_is_cut_field_by_field() -> None:
    data = [[1, 2, 3, 4], "all", ["first", "second"]]
    expected = [[[1, 2], "all", "first"], [[3, 4], "all", "second"]]
    assert list(yield_pieces(data, ["split", "copy", "unstack"], 4, num_pieces=2)) == expected
    assert list(yield_pieces([[1, 2, 3]], ["s"], 4, num_pieces=4)) == [[[1]], [[2]], [[3]]]


def test_what_cannot_be_divided_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"batch_size 5\b.* 2\b"):
        list(yield_pieces([[1]], ["s"], 5, num_pieces=2))
    with pytest.raises(ValueError, match=r"not \['halve'\]"):
        list(yield_pieces([[1]], ["halve"], 4, num_pieces=2))


def test_groups_come_in_order_and_the_last_is_filled_up_to_predict() -> None:
    expected = [([0, 1], [True, True]), ([2, 3], [True, True]), ([4], [True])]
    assert list(data_feeder(range(5), group_size=2)) == expected
    assert list(data_feeder(range(5), phase="predict", group_size=4)) == [
        ([0, 1, 2, 3], [True] * 4),
        ([4, 4, 4, 4], [True, False, False, False]),
    ]


def test_repeated_rows_are_counted() -> None:
    # Pieces of 8 rows; the last real one has 3, and stands there three times.
    assert decode_fake(8 + 3 * 3, [True, True, False, False], 32) == 6
    assert decode_fake(32, [True] * 4, 32) == 0
