"""Conventions of PaddlePALM 2.x: the argument `phase`, tensors as `[shape, dtype]`, results of heads."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.core.component import Component
from palm.core.errors import ConfigError, WiringError
from palm.core.io import make_folder, write_text
from palm.core.saved import Specs, TensorSpec
from palm.paradigm import Head

_FREE = ("batch", "seq")
_DTYPES = {
    "bool": torch.bool,
    "int": torch.long,
    "int32": torch.long,
    "int64": torch.long,
    "float32": torch.float,
    "float64": torch.float,
}


def checked_phase(phase: object) -> str:
    """Return `phase`, which is only recorded: no component computes differently because of it.

    Raises:
        ConfigError: it is neither 'train' nor 'predict'.
    """
    if phase not in ("train", "predict"):
        raise ConfigError(f"phase should be 'train' or 'predict', not {phase!r}")
    return str(phase)


class Phased(Component):
    """A component with a phase, beside the arguments of the class that follows it."""

    def __init__(self, *args: Any, phase: str = "train", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._phase = checked_phase(phase)

    @property
    def phase(self) -> str:
        """The argument of the constructor, 'train' or 'predict'."""
        return self._phase


class Declaring(Phased):
    """Base of the base classes of 2.x, whose subclasses declare tensors in properties, as `[shape, dtype]`.

    Args:
        phase: 'train' or 'predict'.
    """

    def __init__(self, phase: str = "train") -> None:
        super().__init__(phase=phase)
        if "phase" in self.settings:  # they rebuild a saved component, which is for prediction
            self.settings["phase"] = "predict"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in {"inputs_attr", "outputs_attr", "targets_attr"} & vars(cls).keys():
            if isinstance(declared := vars(cls)[name], property):
                setattr(cls, name, property(_converted(declared), doc=declared.__doc__))


def _converted(declared: property) -> Callable[[Any], Specs]:
    declare = declared.fget
    assert declare is not None
    return lambda self: specs_of(declare(self))


def specs_of(declared: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Convert declarations of tensors to `TensorSpec`.

    Args:
        declared: name -> `TensorSpec`, or `[shape, dtype]` as in PaddlePALM, such as
            `[[None, None], 'int64']`; a size of None or -1 is free.

    Raises:
        WiringError: a declaration has neither form.
    """
    specs = {}
    for name, value in declared.items():
        if isinstance(value, TensorSpec):
            specs[name] = value
            continue
        try:
            shape, dtype = value
            free = [_FREE[k] if k < 2 else f"size_{k}" for k in range(len(shape))]
            sizes = [free[k] if size in (None, -1) else size for k, size in enumerate(shape)]
            specs[name] = TensorSpec(tuple(sizes), _DTYPES[dtype])
        except (TypeError, ValueError, KeyError):
            known = ", ".join(_DTYPES)
            raise WiringError(
                f"{name} should be declared as [shape, dtype], with None for a free size and one of {known}, "
                f"not {value!r}"
            ) from None
    return specs


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
    own = [name for name in names if getattr(type(head), name, None) is not getattr(Results, name)]
    return head if isinstance(head, Results) and own else None
