"""Messages that cannot be lost: named queues with leases, on memory, SQLite, PostgreSQL and
Redis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.mailbox.backend import Limits as Limits
    from longwatch.mailbox.mailbox import Mailbox as Mailbox
    from longwatch.mailbox.message import Message as Message
    from longwatch.mailbox.message import Verdict as Verdict
    from longwatch.mailbox.opening import open_mailbox as open_mailbox
    from longwatch.mailbox.opening import open_store as open_store

_HOMES = {
    "Limits": "longwatch.mailbox.backend",
    "Mailbox": "longwatch.mailbox.mailbox",
    "Message": "longwatch.mailbox.message",
    "Verdict": "longwatch.mailbox.message",
    "open_mailbox": "longwatch.mailbox.opening",
    "open_store": "longwatch.mailbox.opening",
}

__all__ = [
    "Limits",
    "Mailbox",
    "Message",
    "Verdict",
    "open_mailbox",
    "open_store",
]

if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
