"""Conventions of PaddlePALM 2.x: the argument `phase`, and tensors declared as `[shape, dtype]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from palm.core.component import Component
from palm.core.errors import ConfigError, WiringError
from palm.core.saved import Specs, TensorSpec

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
    """A component with a phase; a constructor sets `_phase`."""

    _phase: str = "train"

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
        super().__init__()
        self._phase = checked_phase(phase)
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
