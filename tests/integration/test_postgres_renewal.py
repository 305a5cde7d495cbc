from __future__ import annotations

import psycopg

from longwatch.mailbox import open_mailbox
from longwatch.store.postgres.database import PostgresDatabase
from postgres_server import shared_server


def test_renewals_do_not_wait_for_a_message_that_a_users_transaction_is_settling() -> None:
    with shared_server().database() as url, PostgresDatabase(url) as database:
        mailbox = open_mailbox(database, "work")
        mailbox.send_many(["settled", "other"])
        settled, other = mailbox.receive(max_messages=2)
        owner = other.receipt.owner
        with psycopg.connect(url) as connection:
            mailbox.acknowledge_many([settled], tx=connection)
            assert 1 == mailbox.backend.renew(owner=owner, lease_seconds=60)
            assert {settled.receipt, other.receipt} == set(mailbox.backend.held(owner=owner))
        assert [other.receipt] == mailbox.backend.held(owner=owner)


def test_a_flood_of_due_messages_is_freed_in_parts_and_the_first_comes_first() -> None:
    with shared_server().database() as url, PostgresDatabase(url) as database:
        mailbox = open_mailbox(database, "work")
        mailbox.send_many(range(1000), delay_seconds=60)
        mailbox.send("new")
        database.jump.wall = 61
        assert 0 == mailbox.receive()[0].body
