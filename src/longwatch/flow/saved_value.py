"""What an `on_save` function is and gets."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, NamedTuple


class SavedValue(NamedTuple):
    """A computed value that was committed; the argument of `on_save` functions. `execution` is the
    id.
    """

    execution: str
    graph: str
    version: str
    node: str
    value: Any
    revision: int


OnSave = Callable[[SavedValue], object]
"""Called after the commit that saved a computed value; its result is ignored."""


def is_on_save(value: Any) -> bool:
    """Whether a value can be called with a `SavedValue`, and is no `async def`."""
    return callable(value) and not iscoroutinefunction(value)
