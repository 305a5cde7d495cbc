"""A Redis user with the rights that the documentation gives, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ignore_given_up
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.redis.store import RedisStore
from longwatch.mailbox.redis.transport import RedisNode
from longwatch.store.claims import RowSelection
from longwatch.testing.mailbox_suite import (
    admin_checks,
    dead_letter_checks,
    lease_checks,
    receive_checks,
    retry_checks,
    send_checks,
)
from longwatch.testing.mailbox_suite.harness import MailboxHarness
from redis_server import DebianRedisServer, RedisServer, running_server
from requires import require_tool

SUITES: tuple[Any, ...] = (
    send_checks,
    receive_checks,
    admin_checks,
    lease_checks,
    retry_checks,
    dead_letter_checks,
)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "redis-in-production.md"


def documented_rule() -> list[str]:
    """The words of `ACL SETUSER` in the page, after the name of the user."""
    text = PAGE.read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("ACL SETUSER longwatch ")]
    return line.split()[3:]


@pytest.fixture(scope="module", params=[RedisServer, DebianRedisServer])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    if request.param is DebianRedisServer:
        require_tool("redis-server")
    with running_server(kind=request.param) as started:
        with started.client() as client:
            client.execute_command("ACL", "SETUSER", "longwatch", *documented_rule())
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with RedisStore(server.url.replace("//", "//longwatch:PASSWORD@")) as opened:
        yield opened
    with server.client() as client:
        client.flushall()


def jump(mailbox: Any, lease: float, wall: float) -> None:
    mailbox.backend.store.jump.lease += lease
    mailbox.backend.store.jump.wall += wall


def test_the_contract_holds_for_a_user_with_the_documented_rights(
    server: RedisServer, store: RedisStore
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "LOG", "RESET")
    harness = MailboxHarness(partial(open_mailbox, store), jump=jump, reopen=None, transact=None)
    for suite in SUITES:
        for check in suite.CHECKS:
            check(harness)
    sweeper = store.backend("work").sweeper_for(Incarnation.current(), selection=RowSelection.ANY)
    assert sweeper.sweep(ignore_given_up).leads
    sweeper.close()
    wakeup = Wakeup()
    store.backend("work").listen(wakeup)
    assert wakeup.block(20.0), "it is subscribed"
    with server.client() as client:
        refused = {entry["object"] for entry in client.acl_log()}
    assert set() == refused - {"client"}, (
        "redis-py names itself, which Redis 6.2 counts as dangerous"
    )


@pytest.mark.parametrize(
    "command", ["FLUSHALL", "CONFIG GET *", "KEYS *", "SET other 1", "ACL LIST"]
)
def test_the_user_may_use_no_other_keys_and_no_dangerous_commands(
    store: RedisStore, command: str
) -> None:
    node = RedisNode(store.url)
    with pytest.raises(redis.exceptions.NoPermissionError):
        node.execute(*command.split())
    node.close()
