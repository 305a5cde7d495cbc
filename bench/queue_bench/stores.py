"""The four kinds of store, each able to hand out an empty one again and again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from longwatch.mailbox import open_store
from queue_bench import servers

if TYPE_CHECKING:
    import redis

KINDS = ("memory", "sqlite", "redis", "postgresql")


@dataclass(frozen=True)
class BenchStore:
    """One kind of store. `fresh` empties it and says where it is; `admin` is the URL of its
    server, if it has one.
    """

    kind: str
    folder: Path
    fresh: Callable[[], str]
    admin: str = ""


@contextmanager
def opened_store(kind: str, folder: Path) -> Iterator[BenchStore]:
    """A store in that folder, with its server running as long as it is open."""
    folder.mkdir(exist_ok=True)
    numbers = count(1)
    match kind:
        case "redis":
            with servers.redis_server(folder) as url:
                yield BenchStore(kind, folder, lambda: _emptied_redis(url), url)
        case "postgresql":
            with servers.postgresql_server(folder) as url:
                yield BenchStore(kind, folder, lambda: _new_database(url, next(numbers)), url)
        case "sqlite":
            yield BenchStore(kind, folder, lambda: _new_file(folder / "files", next(numbers)))
        case _:
            yield BenchStore(kind, folder, lambda: f"memory://bench{next(numbers)}")


def _new_file(folder: Path, number: int) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return f"sqlite:///{folder / f'{number}.db'}"


def _emptied_redis(url: str) -> str:
    """Flushed, and its file rewritten, so that nobody pays for the one before."""
    import redis  # noqa: PLC0415

    with redis.Redis.from_url(url) as client:
        client.flushall()
        _await_rewrite(client)  # one may have begun by itself, and a second is refused
        client.bgrewriteaof()
        _await_rewrite(client)
    return url


def _await_rewrite(client: redis.Redis) -> None:
    while any(
        client.info("persistence")[name]
        for name in ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    ):
        time.sleep(0.05)


def _new_database(url: str, number: int) -> str:
    """A new database instead of the one before, after a checkpoint, so that nobody pays for
    those pages.
    """
    import psycopg  # noqa: PLC0415

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS bench{number - 1} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE bench{number}".encode())
        connection.execute("CHECKPOINT")
    fresh = f"{url.rpartition('/')[0]}/bench{number}"
    with open_store(fresh, auto_migrate=True) as store:
        store.write(lambda _: None)
    return fresh
