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
from longwatch.host.service import Runnable
from longwatch.mailbox import Mailbox, open_mailbox, open_store
from longwatch.runtime import MainLoop, MainLoopContext
from postgres_server import shared_server
from redis_server import RedisServer
from run_process import TIMEOUT

Store = Any


@contextmanager
def opened_store(kind: str, folder: Path, redis: RedisServer) -> Iterator[Store]:
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


def on_stores(*kinds: str) -> pytest.MarkDecorator:
    """For what may be different from one kind of store to another."""
    return pytest.mark.parametrize("store", kinds, indirect=True)


ON_EVERY_STORE = on_stores("memory", "sqlite", "redis", "postgresql")
ON_SHARED_STORES = on_stores("sqlite", "redis", "postgresql")


class Subject(MainLoop[Any, Any]):
    """A loop under test that does what it is told; it keeps what it was called with, and has a
    mailbox that nobody may touch.
    """

    def __init__(
        self,
        function: Callable[[Any, MainLoopContext], Any] = lambda request, _: request,
        **settings: Any,
    ) -> None:
        super().__init__(
            requests=open_mailbox(f"memory://{secrets.token_hex(8)}", "own"), **settings
        )
        self.calls: list[Any] = []
        self._function = function

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        self.calls.append(request)
        return self._function(request, context)


def echo_dataset(count: int, wrong: int = 0) -> Dataset:
    """Samples that expect their input, but for the first few."""
    return Dataset([Sample(f"s{n}", n, -1 if n < wrong else n) for n in range(count)], name="pairs")


@contextmanager
def running_loop(loop: Runnable) -> Iterator[None]:
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop.shutdown(timeout=TIMEOUT)
        thread.join(TIMEOUT)


def is_drained(mailbox: Mailbox[Any]) -> bool:
    stats = mailbox.stats()
    return not (stats.ready or stats.delayed or stats.leased)
