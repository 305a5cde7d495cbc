from __future__ import annotations

from functools import partial
from typing import Any

from longwatch.mailbox import open_mailbox
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.redis.store import RedisStore
from longwatch.testing import check_mailbox
from redis_server import running_server


def jump_redis(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    store = mailbox.backend.store  # type: ignore[attr-defined]
    store.jump.lease += lease
    store.jump.wall += wall


def test_redis_keeps_the_contract_over_threads_and_processes() -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        check_mailbox(
            partial(open_mailbox, store), jump=jump_redis, reopen=partial(open_mailbox, server.url)
        )
        store.close()
