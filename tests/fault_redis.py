"""What happens to a Redis server. The clients are its user `actor`; every write is on its disk
before it is answered.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fault_harness import Fault, pause
from fault_network import network_faults
from loopback import TcpProxy, free_port
from redis_server import FSYNC_ALWAYS, RedisServer, wait_until

USER = "actor"
MAX_CONNECTIONS = 20
_RIGHTS = ("resetkeys", "resetchannels", "~longwatch:*", "&longwatch:*", "+@all", "-@dangerous")


class RedisFaults:
    """A server and the ways to hurt it."""

    name = "Redis"

    def __init__(self, server: RedisServer, proxy: TcpProxy) -> None:
        self.server = server
        self.proxy = proxy
        self._data = server.directory / "appendonly.aof"

    @property
    def url(self) -> str:
        return f"redis://{USER}:secret@127.0.0.1:{self.server.port}/0"

    @property
    def proxied_url(self) -> str:
        return f"redis://{USER}:secret@127.0.0.1:{self.proxy.port}/0"

    @property
    def watcher_url(self) -> str:
        return self.server.url

    def groups(self) -> dict[str, list[Fault]]:
        kept, _ = self.older_state()
        return {
            "server": [
                Fault("server stopped and restarted", self._stopped),
                Fault("server killed and restarted", self._killed),
                Fault("server frozen for 3 s", self._frozen, seconds=3.0),
                kept,
            ],
            "connections": [
                Fault("connections killed", self._terminated, seconds=0.5),
                Fault("no connection left", self._exhausted, seconds=1.5, fails_calls=True),
                Fault("memory full", self._full, seconds=1.5, fails_calls=True),
            ],
            "rules": [
                Fault("permission denied", self._denied, fails_calls=True),
                Fault("read-only", self._read_only, fails_calls=True),
                Fault("clocks an hour off", _nothing, seconds=1.0),
            ],
            "network": [
                *network_faults(self.proxy),
                Fault("failed over to a replica", self.failed_over, fails_calls=True),
            ],
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
    def _frozen(self) -> Iterator[None]:
        self.server.freeze()
        yield
        self.server.thaw()

    @contextmanager
    def _copied(self) -> Iterator[None]:
        self.server.stop()
        yield
        shutil.copy(self._data, self._data.with_suffix(".older"))
        self.server.start()

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Back to when it was copied, after a while."""
        pause(1.0)
        self.server.stop()
        yield
        self._data.with_suffix(".older").rename(self._data)
        self.server.start()

    @contextmanager
    def _terminated(self) -> Iterator[None]:
        self._run_command("CLIENT", "KILL", "USER", USER)
        yield
        self._run_command("CLIENT", "KILL", "USER", USER)

    @contextmanager
    def _exhausted(self) -> Iterator[None]:
        """Others have every connection."""
        with self.server.client() as admin, ExitStack() as others:
            admin.execute_command("CONFIG", "SET", "maxclients", MAX_CONNECTIONS)
            for _ in range(4):
                admin.execute_command("CLIENT", "KILL", "USER", USER)
                for _ in range(MAX_CONNECTIONS):
                    others.enter_context(socket.create_connection(("127.0.0.1", self.server.port)))
            yield
            admin.execute_command("CONFIG", "SET", "maxclients", 10_000)

    @contextmanager
    def _full(self) -> Iterator[None]:
        self._run_command("CONFIG", "SET", "maxmemory", 1)
        yield
        self._run_command("CONFIG", "SET", "maxmemory", 0)

    @contextmanager
    def _denied(self) -> Iterator[None]:
        self._run_command("ACL", "SETUSER", USER, "-@all")
        yield
        self._run_command("ACL", "SETUSER", USER, *_RIGHTS)

    @contextmanager
    def _read_only(self) -> Iterator[None]:
        """The replica of nobody."""
        self._run_command("REPLICAOF", "127.0.0.1", free_port())
        yield
        self._run_command("REPLICAOF", "NO", "ONE")

    @contextmanager
    def failed_over(self) -> Iterator[None]:
        """And back. The one that was the master goes on as a replica, and so do the connections
        to it.
        """
        with acl_server(self.server.settings) as other:
            self._fail_over(self.server, other)
            yield
            self._fail_over(other, self.server)
            pause(
                1.0
            )  # so long the other one is there, and those who stayed with it have to notice

    def _fail_over(self, master: RedisServer, replica: RedisServer) -> None:
        with master.client() as old, replica.client() as new:
            new.execute_command("REPLICAOF", "127.0.0.1", master.port)
            wait_until(
                lambda: new.info("replication").get("master_link_status") == "up",
                "the replica has caught up",
            )
            old.execute_command("FAILOVER", "TO", "127.0.0.1", replica.port)
            wait_until(
                lambda: new.info("replication")["role"] == "master", "the replica is the master"
            )
        self.proxy.retarget(replica.port)

    def _run_command(self, *words: Any) -> None:
        with self.server.client() as admin:
            admin.execute_command(*words)


@contextmanager
def acl_server(settings: dict[str, str]) -> Iterator[RedisServer]:
    """A server that knows the user."""
    with TemporaryDirectory(prefix="longwatch-redis-") as folder:
        (Path(folder) / "users.acl").write_text(f"user {USER} on >secret {' '.join(_RIGHTS)}\n")
        server = RedisServer(Path(folder), settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def redis_faults() -> Iterator[RedisFaults]:
    with (
        acl_server({**FSYNC_ALWAYS, "aclfile": "users.acl"}) as server,
        TcpProxy(server.port) as proxy,
    ):
        yield RedisFaults(server, proxy)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
