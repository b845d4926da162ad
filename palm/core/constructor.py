"""Constructors of components: the common settings of their kind and their own in one signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints


def constructor_of(
    component: type[Any],
    construct: Callable[..., None],
    take: Callable[..., Any],
    fixed: Mapping[str, Any],
) -> Callable[..., None]:
    """Build a constructor whose signature is exactly the settings of one component.

    The command line and the tables of settings read them from the signature.

    Args:
        component: the class; its attribute `defaults` replaces defaults of common settings.
        construct: the constructor of its base class, which takes the settings of every such component.
        take: the method whose parameters are the component's own settings.
        fixed: values of common settings that this component does not offer.
    """
    common = inspect.signature(construct)
    shared = [p for p in common.parameters.values() if p.name not in fixed]
    own = [p for p in inspect.signature(take).parameters.values() if p.name != "self"]
    sizes = [p for p in shared if p.default is p.empty and p.kind is not p.VAR_KEYWORD]  # `self`, too
    others = [p for p in shared if p.default is not p.empty]
    positional = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [p for p in own if p.kind is p.KEYWORD_ONLY]
    # The sort is stable and moves keyword-only parameters to the end.
    parameters = sorted((*sizes, *positional, *others, *named), key=lambda p: p.kind)
    if unknown := sorted(component.defaults.keys() - {p.name for p in parameters}):
        raise TypeError(f"{component.__name__}.defaults: no setting is called {unknown[0]!r}")
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
