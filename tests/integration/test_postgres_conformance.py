from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.testing import check_mailbox
from postgres_server import shared_server


def jump_postgres(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    database = mailbox.backend.database  # type: ignore[attr-defined]
    database.jump.lease += lease
    database.jump.wall += wall


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    with shared_server().database() as url, PostgresDatabase(url) as opened:
        yield opened


def test_postgresql_keeps_the_contract_over_threads_and_processes(
    database: PostgresDatabase,
) -> None:
    reopen = partial(open_mailbox, database.url)
    check_mailbox(
        partial(open_mailbox, database),
        jump=jump_postgres,
        reopen=reopen,
        transact=database.transact,
    )
