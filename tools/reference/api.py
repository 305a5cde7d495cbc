"""docs/reference/api.md: every public name of each package, with the first sentence of its
docstring. The rest of the page is written by hand.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import public_api
from reference.parts import Part, ReferencePage, cell, table

HEADER = ("name", "kind", "what it is")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def parts() -> Mapping[str, Part]:
    return {
        f"names of {package.__name__}": Part(
            table(HEADER, [_row(package, name) for name in package.__all__]),
            heading=f"### `{package.__name__}`",
        )
        for package in public_api.lazy_packages()
    }


def _row(package: ModuleType, name: str) -> tuple[str, str, str]:
    value = getattr(package, name)
    return f"`{name}`", _kind(value), cell(_summary(value))


def _kind(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "error" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) else "value"


def _summary(value: Any) -> str:
    """The first sentence of a docstring of its own, not one that a base or its type has."""
    if not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    text = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0]
    if inspect.isclass(value) and text.startswith(f"{value.__name__}("):  # made by a dataclass
        return ""
    return _SENTENCE_END.split(" ".join(text.split()))[0]


PAGE = ReferencePage("api.md", parts)
