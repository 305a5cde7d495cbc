"""Threads that send to one mailbox at once, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from longwatch.errors import UsageError
from longwatch.mailbox.group_send import _Send
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.database import Database
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.sqlite.database import SqliteDatabase
from postgres_server import shared_server

THREADS, EACH = 8, 25


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield stack.enter_context(SqliteDatabase(tmp_path / "store.db"))
        else:
            url = stack.enter_context(shared_server().database())
            yield stack.enter_context(PostgresDatabase(url))


def send_at_once(put: Callable[[list[NewMessage]], object]) -> set[str]:
    """The ids of what eight threads have sent, one by one."""
    ids = [[new_id() for _ in range(EACH)] for _ in range(THREADS)]
    start = threading.Barrier(THREADS)

    def send(own: list[str]) -> None:
        start.wait()
        for each in own:
            put([NewMessage(id=each, body=b"1")])

    threads = [threading.Thread(target=send, args=(own,)) for own in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {each for own in ids for each in own}


def stored(backend: SqlBackend) -> list[str]:
    return [record.id for record in backend.peek(limit=THREADS * EACH + 1)]


def test_messages_of_many_threads_are_all_stored_once_in_fewer_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SqlBackend(database, "work")
    backend.queue()
    writes: list[object] = []
    write = database.write

    def counted(work: Any, **options: Any) -> Any:
        writes.append(work)
        return write(work, **options)

    monkeypatch.setattr(database, "write", counted)
    sent = send_at_once(backend.put)
    found = stored(backend)
    assert sent == set(found)
    assert len(found) == THREADS * EACH
    assert len(writes) < len(found)


def test_sends_that_need_a_look_at_other_messages_have_their_own_transactions(
    database: Database,
) -> None:
    limited = SqlBackend(database, "work", limits=MailboxLimits(max_size=10))
    keyed = SqlBackend(database, "work")
    limited._group_send = keyed._group_send = cast("Any", None)
    limited.put([NewMessage(id="a", body=b"1")])
    keyed.put([NewMessage(id="b", body=b"1", dedupe_key="key")])
    keyed.put([NewMessage(id="c", body=b"1", dedupe_key="key")])
    assert ["a", "b"] == stored(keyed)


def test_a_send_inside_a_write_is_refused_at_once_while_others_send(database: Database) -> None:
    """It must not wait for a leader that waits for this write."""
    backend = SqlBackend(database, "work")
    backend.queue()
    leads = [_Send([], 30.0), _Send([], 30.0)]
    backend._group_send._leaders.update(leads)

    def work(_: object) -> None:
        with pytest.raises(UsageError):
            backend.put([NewMessage(id="inside", body=b"1")])

    database.write(work)
    assert [] == stored(backend)
