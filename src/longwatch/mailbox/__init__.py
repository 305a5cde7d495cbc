"""Messages that cannot be lost: named queues with leases in memory, SQLite, PostgreSQL and Redis.

A message is `ready` or `delayed` until a worker claims it under a lease. The worker renews the
lease while it works, and settles the message: acknowledge, retry or dead-letter. A sweep reclaims
the messages of dead workers and of ended leases. `store/__init__.py` states the invariants.

    mailbox.py            the public class: validates, encodes, waits
    message.py            a claimed message and its receipt
    backend.py            the protocol of one queue in one store
    memory.py             its implementations: in memory (with memory_queue.py),
    sql.py                in SQLite and PostgreSQL (with the other sql_*.py),
    redis/                and on a Redis server
    many_mailboxes.py     several mailboxes of a SQL store as one claim source
    limits.py             when a message is given up: one rule for all backends
    dead_letters.py       lists, replays and drops dead letters
    message_runner.py     runs the messages of an engine
    url.py                opens a store or a mailbox by its URL
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
