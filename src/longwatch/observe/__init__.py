"""Turns events into logs and metrics. No other layer logs or counts a state change."""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
