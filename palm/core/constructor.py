"""The constructor of a component: the settings of its kind and those of its own, in one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, get_type_hints


def constructor_of(
    component: type[Any],
    construct: Callable[..., None],
    take: Callable[..., Any],
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., None]:
    """Make a constructor with the signature of one component: the signature is the schema of settings.

    The command line and the tables of settings then see exactly the settings of this component.

    Args:
        component: the class; its attribute `defaults` has other defaults of settings.
        construct: the constructor of its base class, which takes the settings of any such component.
        take: its parameters are settings of this one.
        fixed: values of settings of the kind that this component has not.
    """
    common = inspect.signature(construct)
    shared = [p for p in common.parameters.values() if p.name not in fixed]
    own = [p for p in inspect.signature(take).parameters.values() if p.name != "self"]
    sizes = [p for p in shared if p.default is p.empty and p.kind is not p.VAR_KEYWORD]  # `self`, too
    others = [p for p in shared if p.default is not p.empty]
    positional = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [p for p in own if p.kind is p.KEYWORD_ONLY]
    # The sort keeps the order within a kind, and puts what is named by keyword alone behind the rest.
    parameters = sorted((*sizes, *positional, *others, *named), key=lambda p: p.kind)
    if unknown := sorted(component.defaults.keys() - {p.name for p in parameters}):
        raise TypeError(f"{component.__name__}.defaults: there is no setting {unknown[0]!r}")
    defaults = {p.name: component.defaults.get(p.name, p.default) for p in parameters}
    signature = common.replace(parameters=[p.replace(default=defaults[p.name]) for p in parameters])

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        construct(**bound.arguments, **fixed)

    hints = {
        **get_type_hints(construct, include_extras=True),
        **get_type_hints(take, include_extras=True),
    }
    init.__annotations__ = {name: hints[name] for name in signature.parameters if name in hints}
    init.__signature__ = signature  # type: ignore[attr-defined]
    init.__name__ = "__init__"
    init.__qualname__ = f"{component.__qualname__}.__init__"
    return init
