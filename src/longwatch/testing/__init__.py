"""The public test kit: what a program built on Longwatch needs to be tested without sleeping."""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
