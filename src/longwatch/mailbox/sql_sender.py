"""Inserts messages of one mailbox in a SQL store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longwatch.errors import MailboxFullError
from longwatch.mailbox.records import NewMessage
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.store.database import Transaction

_MAX_SHARED_MESSAGES = 100
_MAX_SHARED_BYTES = 64 << 10


class SqlSender:
    """Inserts messages, each dedupe key once, up to `max_size`. Every method runs in a transaction
    that the caller opened.
    """

    def __init__(
        self,
        name: str,
        queries: Mapping[str, str],
        dead_letters: SqlDeadLetters,
        *,
        max_size: int | None,
    ) -> None:
        self._name = name
        self._sql = queries
        self._dead_letters = dead_letters
        self._max_size = max_size

    def can_share(self, messages: Sequence[NewMessage]) -> bool:
        """Return whether a transaction may write these messages with those of other callers: few
        and small ones whose insertion depends on no other message.
        """
        return (
            self._max_size is None
            and len(messages) <= _MAX_SHARED_MESSAGES
            and all(message.dedupe_key is None for message in messages)
            and sum(len(message.body) for message in messages) <= _MAX_SHARED_BYTES
        )

    def put(self, tx: Transaction, queue: int, messages: Sequence[NewMessage]) -> list[str]:
        """Insert messages and return their ids. Raises MailboxFullError if they do not all fit."""
        self._lock_size(tx, queue)
        keys = {message.dedupe_key for message in messages if message.dedupe_key is not None}
        repeated = sum(self._has_key(tx, queue, key) for key in keys)
        keyless = sum(message.dedupe_key is None for message in messages)
        self._require_room(tx, queue, keyless + len(keys) - repeated)
        tx.notify(self._name)
        if keys:
            return [self._put_one(tx, queue, message) for message in messages]
        tx.defer_many(self._sql["put"], [_put_parameters(queue, message) for message in messages])
        return [message.id for message in messages]

    def _put_one(self, tx: Transaction, queue: int, message: NewMessage) -> str:
        """Insert a message and return its id, or the id of the message that has its dedupe key.
        Retries if that message is removed meanwhile.
        """
        while (
            tx.execute_many(self._sql["put"], [_put_parameters(queue, message)]) == 0
            and message.dedupe_key is not None
        ):
            for (first,) in tx.rows(
                self._sql["find_by_dedupe_key"], {"queue": queue, "dedupe_key": message.dedupe_key}
            ):
                return str(first)
        return message.id

    def _has_key(self, tx: Transaction, queue: int, key: str) -> bool:
        """Return whether a message has this dedupe key. Gives up an expired message first."""
        self._dead_letters.expire_by_key(tx, queue, key)
        return bool(tx.rows(self._sql["find_by_dedupe_key"], {"queue": queue, "dedupe_key": key}))

    def _lock_size(self, tx: Transaction, queue: int) -> None:
        """Lock the size of the queue, on databases where several transactions write at once."""
        if self._max_size is not None and (lock := self._sql.get("lock_size")):
            tx.rows(lock, {"queue": queue})

    def _require_room(self, tx: Transaction, queue: int, added: int) -> None:
        """Raise MailboxFullError if `added` messages do not fit. Gives up expired ones first."""
        max_size = self._max_size
        if max_size is None:
            return
        count = self._count(tx, queue, max_size)
        if count + added > max_size and self._dead_letters.expire(tx, queue).total:
            count = self._count(tx, queue, max_size)
        if count + added > max_size:
            raise MailboxFullError(
                f"mailbox {self._name!r} holds {count} of {max_size} messages; let its workers "
                f"catch up, or raise max_size"
            )

    def _count(self, tx: Transaction, queue: int, limit: int) -> int:
        [(count,)] = tx.rows(self._sql["count_messages"], {"queue": queue, "limit": limit + 1})
        return int(count)


def _put_parameters(queue: int, message: NewMessage) -> dict[str, object]:
    return {
        "queue": queue,
        "delay": message.delay,
        "id": message.id,
        "expires_in": message.expires_in,
        "keep_expired": int(message.keep_expired),
        "dedupe_key": message.dedupe_key,
        "reply_to": message.reply_to,
        "headers": message.headers,
        "body": message.body,
    }
