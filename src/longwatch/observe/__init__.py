"""Events become logs and metrics (and, later, pages); nothing else logs or counts a state
change.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
