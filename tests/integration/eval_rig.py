"""What tests of evals share: every kind of store, a loop to be measured that does what it is
told, and a dataset for it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from longwatch.evals import Dataset, Sample
from longwatch.host.runnable import Runnable
from longwatch.mailbox import Mailbox, open_mailbox, open_store
from longwatch.runtime import MainLoop, MainLoopContext
from postgres_server import shared_server
from redis_server import RedisServer
from supervised import PATIENCE

Store = Any


@contextmanager
def opened(kind: str, folder: Path, redis: RedisServer) -> Iterator[Store]:
    if kind == "postgresql":
        with shared_server().database() as url, open_store(url, auto_migrate=True) as store:
            yield store
        return
    urls = {
        "memory": f"memory://{folder.name}",
        "sqlite": f"sqlite:///{folder}/evals.db",
        "redis": redis.url,
    }
    with open_store(urls[kind]) as store:
        yield store
    if kind == "redis":
        with redis.client() as client:
            client.flushall()


def on(*kinds: str) -> pytest.MarkDecorator:
    """For what may be different from one kind of store to another."""
    return pytest.mark.parametrize("store", kinds, indirect=True)


EVERYWHERE = on("memory", "sqlite", "redis", "postgresql")
ACROSS_PROCESSES = on("sqlite", "redis", "postgresql")


class Subject(MainLoop[Any, Any]):
    """A loop under test that does what it is told; it keeps what it was called with, and has a
    mailbox that nobody may touch.
    """

    def __init__(
        self,
        does: Callable[[Any, MainLoopContext], Any] = lambda request, _: request,
        **settings: Any,
    ) -> None:
        super().__init__(
            requests=open_mailbox(f"memory://{secrets.token_hex(8)}", "own"), **settings
        )
        self.calls: list[Any] = []
        self._does = does

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        self.calls.append(request)
        return self._does(request, context)


def pairs(count: int, wrong: int = 0) -> Dataset:
    """Samples that expect their input, but for the first few."""
    return Dataset([Sample(f"s{n}", n, -1 if n < wrong else n) for n in range(count)], name="pairs")


@contextmanager
def running(loop: Runnable) -> Iterator[None]:
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop.shutdown(timeout=PATIENCE)
        thread.join(PATIENCE)


def settled(mailbox: Mailbox[Any]) -> bool:
    stats = mailbox.stats()
    return not (stats.ready or stats.delayed or stats.leased)
