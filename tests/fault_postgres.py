"""What happens to a PostgreSQL server. The clients are its user `actor`, who owns their database
and is nobody else.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import psycopg

from fault_harness import Fault, pause
from fault_network import network_faults
from longwatch.store.postgres.database import PostgresDatabase
from loopback import TcpProxy
from postgres_server import PostgresServer, destroy_server, make_server

USER = "actor"
DATABASE = "faults"
MAX_CONNECTIONS = 30
_OLD_SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM longwatch_messages"
)
_TERMINATE = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"


class PostgresFaults:
    """A server and the ways to hurt it."""

    name = "PostgreSQL"

    def __init__(self, server: PostgresServer, proxy: TcpProxy) -> None:
        self.server = server
        self.proxy = proxy
        self._copy = server.folder / "older"
        server.sql(f"CREATE ROLE {USER} LOGIN")
        server.sql(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        with PostgresDatabase(self.url, auto_migrate=True) as database:
            database.write(lambda tx: tx.rows("SELECT 1"))

    @property
    def url(self) -> str:
        return self.server.url(DATABASE, user=USER)

    @property
    def proxied_url(self) -> str:
        return self.url.replace(f":{self.server.port}/", f":{self.proxy.port}/")

    @property
    def watcher_url(self) -> str:
        return self.server.url(DATABASE)

    def groups(self) -> dict[str, list[Fault]]:
        kept, _ = self.older_state()
        return {
            "server": [
                Fault("server stopped and restarted", self._stopped),
                Fault("server killed and restarted", self._killed, seconds=0.5),
                Fault("server frozen for 3 s", self.server.frozen, seconds=3.0),
                kept,
            ],
            "connections": [
                Fault("backends terminated", self._terminated, seconds=0.5),
                Fault("no connection left", self._exhausted, seconds=1.5),
                Fault(
                    "old snapshot held", partial(self._idle_transaction, _OLD_SNAPSHOT), seconds=1.0
                ),
                Fault(
                    "rows locked",
                    partial(
                        self._idle_transaction,
                        "SELECT 1 FROM longwatch_messages FOR UPDATE SKIP LOCKED",
                    ),
                    seconds=1.5,
                ),
                Fault(
                    "table locked",
                    partial(self._idle_transaction, "LOCK TABLE longwatch_messages"),
                    seconds=1.5,
                ),
            ],
            "rules": [
                Fault("permission denied", self._denied, fails_calls=True),
                Fault("read-only", self.read_only, fails_calls=True),
                Fault("clocks an hour off", _nothing, seconds=1.0),
            ],
            "network": network_faults(self.proxy),
        }

    def older_state(self) -> tuple[Fault, Fault]:
        """A copy is taken, and put back."""
        restored = Fault("older state restored", self._restored, seconds=0.5, restores_state=True)
        return Fault(
            "stopped and copied", self._copied, seconds=0.5, saves_state=True, followed_by=restored
        ), restored

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        self.server.stop()
        yield
        self.server.start()

    @contextmanager
    def _killed(self) -> Iterator[None]:
        self.server.kill()
        yield
        self.server.start()

    @contextmanager
    def _copied(self) -> Iterator[None]:
        self.server.stop()
        yield
        subprocess.run(["cp", "-a", self.server.data, self._copy], check=True)
        self.server.start()

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Back to when it was copied, after a while."""
        pause(1.0)
        self.server.stop()
        yield
        shutil.rmtree(self.server.data)
        self._copy.rename(self.server.data)
        self.server.start()

    @contextmanager
    def _terminated(self) -> Iterator[None]:
        self.server.sql(_TERMINATE)
        yield
        self.server.sql(_TERMINATE)

    @contextmanager
    def _exhausted(self) -> Iterator[None]:
        """Others have every connection but those that are kept for superusers."""
        with ExitStack() as others:
            for _ in range(4):
                self.server.sql(
                    _TERMINATE.replace("usename", "application_name <> 'other' AND usename")
                )
                with suppress(psycopg.OperationalError):
                    for _ in range(MAX_CONNECTIONS):
                        others.enter_context(psycopg.connect(self.url, application_name="other"))
            yield

    @contextmanager
    def _idle_transaction(self, statement: str) -> Iterator[None]:
        """Somebody is idle in a transaction."""
        with psycopg.connect(self.server.url(DATABASE)) as connection:
            connection.execute(statement.encode())
            yield

    @contextmanager
    def _denied(self) -> Iterator[None]:
        self.server.sql(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {USER}", DATABASE)
        yield
        self.server.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {USER}", DATABASE)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Connections that were made meanwhile stay read-only, as those to a primary that was
        demoted do.
        """
        self.server.sql(f"ALTER ROLE {USER} SET default_transaction_read_only = on")
        self.server.sql(_TERMINATE)
        yield
        self.server.sql(f"ALTER ROLE {USER} RESET default_transaction_read_only")


@contextmanager
def postgres_faults() -> Iterator[PostgresFaults]:
    server = make_server(max_connections=str(MAX_CONNECTIONS))
    try:
        server.start()
        with TcpProxy(server.port) as proxy:
            yield PostgresFaults(server, proxy)
    finally:
        destroy_server(server)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
