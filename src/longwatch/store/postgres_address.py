"""Where a server is, and getting a connection to it."""

from __future__ import annotations

import re
import select
import time
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn

from longwatch.core.masking import mask_text
from longwatch.errors import StoreBusyError, StoreUnreachableError, UsageError
from longwatch.store.postgres_errors import CallTimeoutError
from longwatch.store.postgres_wire import Wire

OLDEST = 13
_DEFAULTS = {
    "application_name": "longwatch",
    "client_encoding": "utf8",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""A machine that is gone is noticed in the middle of a call, so that the rest of its time is left for another try."""
_HOPELESS = re.compile(
    r"authentication failed|no pg_hba.conf entry|does not exist|not permitted|could not translate host|invalid|does not support SSL"
    r"|certificate"
)
_COMING = re.compile(r"starting up|shutting down|recovery|not yet accepting")
_CROWDED = re.compile(r"too many clients|remaining connection slots|too many connections|no more connections")


class Address:
    """What a URL says. Whatever libpq takes may stand in it: several hosts, TLS, `options=-csearch_path=…`."""

    def __init__(self, url: str) -> None:
        try:
            self._parts: dict[str, Any] = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(f"{mask_text(url)} cannot be read ({mask_text(str(error)).strip()}); write it as {_EXAMPLE}") from None
        self.shown = mask_text(url)

    @property
    def identity(self) -> tuple[object, ...]:
        """The same for two that lead to the same tables, whoever asks."""
        return "postgresql", *(self._parts.get(name) for name in ("hostaddr", "host", "port", "dbname", "service", "options"))

    def attempts(self) -> list[str]:
        """One for each host that is named, to be tried in that order."""
        names = [name for name in ("host", "hostaddr", "port") if self._parts.get(name)]
        lists = {name: str(self._parts[name]).split(",") for name in names}
        count = max((len(values) for values in lists.values()), default=1)
        return [make_conninfo("", **{**_DEFAULTS, **self._parts, **_nth(lists, number)}) for number in range(count)]

    def connect(self, deadline: float) -> Wire:
        """A new connection; the time is shared out among the hosts, so that one that swallows leaves some for the next."""
        attempts = self.attempts()
        for left in range(len(attempts), 0, -1):
            now = time.monotonic()
            try:
                return self._wire(attempts[-left], now + (deadline - now) / left)
            except (StoreUnreachableError, CallTimeoutError):
                if left == 1:
                    raise
        raise AssertionError("there is always a last attempt")

    def _wire(self, conninfo: str, deadline: float) -> Wire:
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            _shake_hands(pgconn, deadline)
        except psycopg.Error as error:
            pgconn.finish()
            raise self._refusal(str(error)) from error
        except CallTimeoutError:
            pgconn.finish()
            raise CallTimeoutError(f"{self.shown} did not answer in time; check host and port, and the network") from None
        if pgconn.server_version < OLDEST * 10_000:
            raise UsageError(f"{self.shown} runs PostgreSQL {pgconn.server_version // 10_000}; {OLDEST} is the oldest that will do")
        return Wire(pgconn)

    def _refusal(self, said: str) -> StoreUnreachableError | StoreBusyError:
        """What a failed attempt means. libpq keeps the code of the error to itself, so the text has to tell."""
        text = mask_text(" ".join(said.split()))
        if _CROWDED.search(text):
            return CrowdedError(f"{self.shown} has no connection left ({text}); end some, or raise max_connections")
        if _COMING.search(text):
            return ComingError(f"{self.shown} is starting up or shutting down ({text}); try again")
        if _HOPELESS.search(text):
            return StoreUnreachableError(f"{self.shown} lets nobody in ({text}); check user, password, database and pg_hba.conf")
        return AwayError(f"{self.shown} cannot be reached ({text}); check host and port, and that the server runs")


class ComingError(StoreUnreachableError):
    """The server is there, but takes no connections yet, or not any more."""


class CrowdedError(StoreBusyError):
    """The server has no connection left for us."""


class AwayError(StoreUnreachableError):
    """There is nobody; a server that was there before may come back."""


_EXAMPLE = "postgresql://user@host:5432/database"


def _nth(lists: dict[str, list[str]], number: int) -> dict[str, str]:
    """The parts of one host; a port that is named once is that of all."""
    return {name: values[number if len(values) > 1 else 0] for name, values in lists.items()}


def _shake_hands(pgconn: PGconn, deadline: float) -> None:
    events = select.POLLOUT
    while True:
        if pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(pgconn.get_error_message())
        _await(pgconn.socket, events, deadline)
        match pgconn.connect_poll():
            case pq.PollingStatus.OK:
                return
            case pq.PollingStatus.READING:
                events = select.POLLIN
            case pq.PollingStatus.WRITING:
                events = select.POLLOUT
            case _:
                raise psycopg.OperationalError(pgconn.get_error_message())


def _await(fileno: int, events: int, deadline: float) -> None:
    poll = select.poll()  # the socket is another one when libpq goes on to the next address of a host
    poll.register(fileno, events)
    if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
        raise CallTimeoutError
