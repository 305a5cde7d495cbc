"""The public test kit: what a program built on Longwatch needs to be tested without sleeping."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "FakeClock": "longwatch.core.fake_clock",
    "RecordingObserver": "longwatch.testing.observer",
    "check_service": "longwatch.testing.services",
}

__all__ = [
    "FakeClock",
    "RecordingObserver",
    "check_service",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'longwatch.testing' has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
