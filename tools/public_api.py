"""The public names of the product, one a line: of the package and of every subpackage whose
`__init__` is a lazy table.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import longwatch


def lazy_packages() -> Iterator[ModuleType]:
    yield longwatch
    for found in pkgutil.walk_packages(longwatch.__path__, "longwatch."):
        if found.ispkg and "lazy_exports" in vars(package := import_module(found.name)):
            yield package


def names() -> list[str]:
    return [f"{package.__name__}.{name}" for package in lazy_packages() for name in package.__all__]


if __name__ == "__main__":
    print(*names(), sep="\n")
