"""Methods of PaddlePALM 2.x's heads that collect, return and write the results of a prediction."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.core.files.door import make_folder
from palm.core.files.fs import write_text
from palm.core.tensor_specs import Tensors


class Results:
    """Methods around a prediction; `Trainer.predict` calls them if a head overrides any.

    Attributes:
        epoch_inputs_attrs: inputs of `epoch_postprocess` from the reader, `{"reader": {…}}`.
    """

    _results_buffer: list[Any]

    @property
    def epoch_inputs_attrs(self) -> Mapping[str, Any]:
        """Empty by default."""
        return {}

    def batch_postprocess(self, rt_outputs: Mapping[str, Any]) -> list[Any]:
        """Decode one batch and append the results to the buffer.

        Args:
            rt_outputs: the head's outputs, numpy arrays.

        Returns:
            The results of `decode`, one per row.
        """
        outputs: Tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in rt_outputs.items()}
        results: list[Any] = self.decode(outputs)  # type: ignore[attr-defined]
        _buffer(self).extend(results)
        return results

    def get_results(self) -> list[Any]:
        """Return a copy of all results since `reset`."""
        return copy.deepcopy(_buffer(self))

    def reset(self) -> None:
        """Clear the results."""
        self._results_buffer = []

    def epoch_postprocess(self, post_inputs: Any = None, output_dir: str | Path | None = None) -> Any:  # noqa: ARG002
        """Return all results, or write them as JSON lines.

        Args:
            post_inputs: the inputs declared in `epoch_inputs_attrs`.
            output_dir: the folder for the file, which is named after the phase; None to write nothing.
        """
        if output_dir is not None:
            folder = Path(output_dir)
            make_folder(folder)
            lines = (json.dumps(result, ensure_ascii=False) + "\n" for result in _buffer(self))
            path = folder / self.phase  # type: ignore[attr-defined]
            write_text(path, "".join(lines))
        return _buffer(self)


def _buffer(head: Results) -> list[Any]:
    if "_results_buffer" not in vars(head):
        head.reset()
    return head._results_buffer


def has_own_results(head: Results) -> bool:
    """Check whether a head's class overrides one of these methods."""
    names = ("batch_postprocess", "epoch_postprocess", "get_results", "reset")
    return any(getattr(type(head), name) is not getattr(Results, name) for name in names)
