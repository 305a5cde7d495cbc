"""A PgBouncer with pool_mode=transaction before the server of a part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from queue_bench.servers import free_port, running_server, unprivileged

POOL_SIZE = 8


@contextmanager
def pgbouncer(folder: Path, url: str) -> Iterator[int | None]:
    """Its port, or None where PgBouncer is not installed. It refuses to run as root."""
    program = shutil.which("pgbouncer")
    if program is None:
        yield None
        return
    port = free_port()
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": POOL_SIZE,
        "max_client_conn": 200,
    }
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host=127.0.0.1 port={urlsplit(url).port} user=postgres\n[pgbouncer]\n"
        + "".join(f"{key} = {value}\n" for key, value in settings.items())
    )
    with running_server(
        [program, str(config)],
        lambda: psycopg.connect(through(url, port)).close(),
        log=folder / "pgbouncer.log",
        **unprivileged(),
    ):
        yield port


def through(url: str, port: int) -> str:
    """The URL of the same database through a pooler."""
    return f"{url.rpartition(':')[0]}:{port}/{url.rpartition('/')[2]}"
