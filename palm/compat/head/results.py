"""Methods of PaddlePALM 2.x's heads that collect, return and write the results of a prediction."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.compat.conventions import Phased
from palm.core.io import make_folder, write_text
from palm.paradigm import Head


class Results(Phased, Head):
    """Methods around a prediction; `Trainer.predict` calls them if a subclass overrides any.

    Attributes:
        epoch_inputs_attrs: inputs of `epoch_postprocess` from the reader, `{"reader": {…}}`.
    """

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
        outputs = {name: torch.from_numpy(np.asarray(value)) for name, value in rt_outputs.items()}
        results = self.decode(outputs)
        self._buffer().extend(results)
        return results

    def get_results(self) -> list[Any]:
        """Return a copy of all results since `reset`."""
        return copy.deepcopy(self._buffer())

    def reset(self) -> None:
        """Clear the results."""
        self._results_buffer: list[Any] = []

    def epoch_postprocess(self, post_inputs: Any = None, output_dir: str | Path | None = None) -> Any:  # noqa: ARG002
        """Return all results, or write them as JSON lines.

        Args:
            post_inputs: the inputs declared in `epoch_inputs_attrs`.
            output_dir: the folder for the file, which is named after the phase; None to write nothing.
        """
        if output_dir is not None:
            make_folder(Path(output_dir))
            lines = (json.dumps(result, ensure_ascii=False) + "\n" for result in self._buffer())
            write_text(Path(output_dir) / self.phase, "".join(lines))
        return self._buffer()

    def _buffer(self) -> list[Any]:
        if "_results_buffer" not in vars(self):
            self.reset()
        return self._results_buffer


def own_results(head: Head) -> Results | None:
    """Return the head if its class overrides one of these methods; otherwise None."""
    names = ("batch_postprocess", "epoch_postprocess", "get_results", "reset")
    if isinstance(head, Results):
        return (
            head if any(getattr(type(head), name) is not getattr(Results, name) for name in names) else None
        )
    return None
