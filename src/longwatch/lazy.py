"""Public names that are loaded when they are first used (PEP 562), so that importing a package
costs next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *, modules: Collection[str] = ()
) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names live in the modules that `homes` says;
    `modules` are public themselves.
    """

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        try:
            home = homes[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        value = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
