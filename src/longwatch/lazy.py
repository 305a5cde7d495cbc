"""Public names that load when they are first used (PEP 562), listed once, in the package's stub.

`__init__.pyi` is both the table of a package and what type checkers read. A line
`from MODULE import NAME as NAME` exports a name; `from PACKAGE import NAME as NAME`, where PACKAGE
is the package itself, exports a submodule.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def read_exports(package: str) -> dict[str, str]:
    """Return the public names of a lazy package, each with the module that defines it."""
    stub = f"{sys.modules[package].__file__}i"
    with open(stub, encoding="utf-8") as lines:  # noqa: PTH123 - pathlib costs more than all of this
        exports = [line.split() for line in lines if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in exports}


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package whose stub lists its names."""
    modules = read_exports(package)
    names = sorted(name for name, module in modules.items() if module != package)
    if "__version__" in vars(sys.modules[package]):
        names = sorted([*names, "__version__"])

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: names, names
