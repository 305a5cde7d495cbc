"""A real PgBouncer before a PostgreSQL server of the tests. It refuses to run as root, so then it
runs as the user of the server.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from loopback import free_port
from polling import eventually
from postgres_server import PostgresServer
from requires import require_tool

TIMEOUT = 10.0
_NOBODY = 65534


@contextmanager
def pgbouncer(server: PostgresServer, *, mode: str = "transaction", size: int = 4) -> Iterator[int]:
    """Yield the port of a pooler that keeps so many connections to each database."""
    require_tool("pgbouncer")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="longwatch-pgbouncer-") as name:
        folder = Path(name)
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": size,
            "max_client_conn": 200,
        }
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n[pgbouncer]\n"
            + "".join(f"{key} = {value}\n" for key, value in settings.items())
        )
        with (folder / "log").open("wb") as log, _running(config, log) as process:
            assert eventually(lambda: process.poll() is not None or _answers(port))
            assert process.poll() is None, (folder / "log").read_text()
            yield port


def through(url: str, port: int) -> str:
    """The URL of the same database through a pooler."""
    return f"{url.rpartition(':')[0]}:{port}/{url.rpartition('/')[2]}"


@contextmanager
def _running(config: Path, log: Any) -> Iterator[subprocess.Popen[bytes]]:
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        config.parent.chmod(0o755)
    process = subprocess.Popen(
        ["pgbouncer", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **user
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT)


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
    except psycopg.OperationalError:
        return False
    return True
