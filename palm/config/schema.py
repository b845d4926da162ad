"""The signature is the schema: the settings that a component accepts are its constructor's parameters."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from palm.core.checks import FILE_NAMES
from palm.core.errors import PalmError

MAY_BE_FILE = "may be a file"
"""Marks a string that becomes an absolute path if that file exists."""

Consumer = type | Callable[..., Any]


REQUIRED: Final = inspect.Parameter.empty
"""Default of a parameter without a default."""


@dataclass(frozen=True)
class Parameter:
    """One setting that a consumer accepts.

    Attributes:
        name: the parameter's own name.
        annotation: its type; `Any` if it has none.
        default: its default, or `REQUIRED`.
        doc: its entry under `Args:` in the docstring, as one line.
    """

    name: str
    annotation: Any
    default: Any
    doc: str


@cache
def settings_of(consumer: Consumer) -> dict[str, Parameter]:
    """Return the settings that a class or function accepts, by name, in the order of its signature.

    `*args` and `**kwargs` are left out. Descriptions come from `Args:` (or `Attributes:`) in docstrings.

    Raises:
        PalmError: an annotation names something that is not defined at run time.
    """
    function: Callable[..., Any] = consumer.__init__ if isinstance(consumer, type) else consumer  # type: ignore[misc]
    # A component's constructor is wrapped; the original has the annotations.
    annotated = consumer if dataclasses.is_dataclass(consumer) else inspect.unwrap(function)
    try:
        hints = get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise PalmError(
            f"{consumer.__module__}.{consumer.__qualname__}: an annotation cannot be read: {error}; "
            "import what it names outside of `if TYPE_CHECKING`"
        ) from None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    signature = list(inspect.signature(function).parameters.items())
    own = signature[1:] if isinstance(consumer, type) else signature  # without `self`
    parameters = {name: parameter for name, parameter in own if parameter.kind in named}
    docs = _docs(consumer)
    fields = dataclasses.fields(consumer) if dataclasses.is_dataclass(consumer) else ()
    # Defaults from a factory, such as lists, are not in the signature.
    made = {
        field.name: field.default_factory()
        for field in fields
        if field.default_factory is not dataclasses.MISSING
    }
    # Settings that only training needs have a default for prediction.
    made |= {field.name: REQUIRED for field in fields if field.metadata.get("needed")}
    return {
        name: Parameter(
            name=name,
            annotation=_may_name_file(name, hints.get(name, Any)),
            default=made.get(name, parameter.default),
            doc=docs.get(name, ""),
        )
        for name, parameter in parameters.items()
    }


def _may_name_file(name: str, annotation: Any) -> Any:
    """Mark the annotation of a string that may name a file, judging by the name of the setting."""
    is_text = str in (annotation, *get_args(annotation)) and get_origin(annotation) is not Annotated
    return Annotated[annotation, MAY_BE_FILE] if is_text and name.endswith(FILE_NAMES) else annotation


def _docs(consumer: Consumer) -> dict[str, str]:
    """Return name -> description from `Args:` and `Attributes:` in docstrings; subclasses take precedence."""
    found: dict[str, str] = {}
    for owner in reversed(consumer.__mro__) if isinstance(consumer, type) else [consumer]:
        docstring = owner.__dict__.get("__doc__") if isinstance(owner, type) else owner.__doc__
        for section in re.findall(
            r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", inspect.cleandoc(docstring or ""), re.M
        ):
            for entry in re.split(r"\n(?=\S)", textwrap.dedent(section)):
                names, _, text = entry.partition(":")
                described = re.findall(r"\w+", re.sub(r"\(.*?\)", "", names))
                found |= dict.fromkeys(described, " ".join(text.split()))
    return found
