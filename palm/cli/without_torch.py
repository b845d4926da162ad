"""Commands that only read declarations and records: they run without torch, whose import takes a second.

A component's settings are those of its constructor, and components inherit from torch's classes. So every
name in torch is replaced with a class that can be inherited from and used in annotations and decorators.
Anything that computes with torch ends the attempt.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

REPLACED = ("torch", "numpy", "tqdm")
"""Packages that placeholders replace."""

THEIR_USERS = (*REPLACED, "palm", "safetensors")
"""Packages whose modules are unloaded again if they were imported with placeholders."""


class _NeedsTorchError(BaseException):
    """Torch itself is needed; only `run_without_torch` may catch this."""


def need_torch() -> None:
    """End an attempt to run without torch, before code that is not palm's own."""
    if isinstance(sys.modules.get("torch"), _Module):
        raise _NeedsTorchError


class _Name(ABCMeta):
    """Metaclass of the classes that replace torch's names, and so of their subclasses."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or "is_torch" not in vars(cls):
            raise AttributeError(name)
        return _name(name)

    def __call__(cls, *_: Any, **__: Any) -> Any:
        is_in_function = sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED
        if is_in_function:
            raise _NeedsTorchError
        return cls  # a decorator, or a constant of a module

    def __getitem__(cls, _: Any) -> Any:
        return cls  # an annotation


def _name(name: str) -> _Name:
    return _Name(name, (), {"__module__": "torch", "is_torch": True})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self).setdefault(name, _name(name))


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of torch."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        is_replaced = fullname.partition(".")[0] in REPLACED
        return ModuleSpec(fullname, self, is_package=True) if is_replaced else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are created when they are used."""


@contextmanager
def _without_torch() -> Iterator[None]:
    before = {*sys.modules}
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name not in before]:
            if name.partition(".")[0] in THEIR_USERS:
                parent, _, own = name.rpartition(".")
                del sys.modules[name]
                if parent in sys.modules:
                    vars(sys.modules[parent]).pop(own, None)


def run_without_torch(run: Callable[[], None]) -> None:
    """Call a function that may need torch, without torch if that is possible."""
    if "torch" not in sys.modules:
        with suppress(_NeedsTorchError), _without_torch():
            run()
            return
    run()
