"""Messages that cannot be lost: named queues with leases, on memory, SQLite, PostgreSQL and
Redis.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
