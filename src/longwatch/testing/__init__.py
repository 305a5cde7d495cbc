"""The public test kit: fakes, recorders and conformance suites for tests that do not sleep."""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
