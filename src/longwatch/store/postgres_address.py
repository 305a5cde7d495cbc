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
from longwatch.errors import (
    LoginRefusedError,
    StoreBusyError,
    StoreMisplacedError,
    StoreUnreachableError,
    UsageError,
)
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
"""A machine that is gone is noticed in the middle of a call, so that the rest of its time is
left for another try.
"""
_MISWRITTEN = re.compile(
    r"invalid|certificate|does not support SSL|no password supplied|not "
    r"supported|authentication method|service file|of service"
    r"|could not parse network address|expected authentication request"
)
_NOT_FOUND = "could not translate host name"


class Address:
    """What a URL says. Whatever libpq takes may stand in it: several hosts, TLS,
    `options=-csearch_path=…`.
    """

    def __init__(self, url: str) -> None:
        try:
            self._parts: dict[str, Any] = conninfo_to_dict(url)
        except psycopg.Error:  # its text may hold the password
            raise UsageError(
                f"{_HIDDEN} cannot be read; {_ENCODE}, and check the names behind the ?"
            ) from None
        self.shown = mask_text(url)
        if _is_torn(url, self._parts):
            raise UsageError(
                f"{_HIDDEN} cannot be read; {_ENCODE}, and the port is a number from 1 to 65535"
            )
        counts = {len(values) for values in self._lists().values()} - {1}
        if len(counts) > 1:
            raise UsageError(
                f"{self.shown} names more hosts than ports, or fewer; name one port for all, "
                f"or one for each host"
            )

    @property
    def identity(self) -> tuple[object, ...]:
        """The same for two that lead to the same tables, whoever asks."""
        return "postgresql", *(
            self._parts.get(name)
            for name in ("hostaddr", "host", "port", "dbname", "service", "options")
        )

    def attempts(self) -> list[str]:
        """One for each host that is named, to be tried in that order."""
        lists = self._lists()
        count = max((len(values) for values in lists.values()), default=1)
        return [
            make_conninfo("", **{**_DEFAULTS, **self._parts, **_nth(lists, number)})
            for number in range(count)
        ]

    def _lists(self) -> dict[str, list[str]]:
        names = [name for name in ("host", "hostaddr", "port") if self._parts.get(name)]
        return {name: str(self._parts[name]).split(",") for name in names}

    def connect(self, deadline: float) -> Wire:
        """A new connection; the time is shared out among the hosts, so that one that swallows
        leaves some for the next.
        """
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
            raise CallTimeoutError(
                f"{self.shown} did not answer in time; check host and port, and the network"
            ) from None
        if pgconn.server_version < OLDEST * 10_000:
            raise UsageError(
                f"{self.shown} runs PostgreSQL {pgconn.server_version // 10_000}; {OLDEST} is "
                f"the oldest that will do"
            )
        return Wire(pgconn)

    def _refusal(self, said: str) -> StoreUnreachableError | StoreBusyError:
        """What a failed attempt means. libpq keeps the code of the error to itself, so the text
        has to tell.
        """
        text = mask_text(" ".join(said.split()))
        verdict = _of_the_server(said)
        if verdict is None:
            return self._nobody_there(_without_names(said), text)
        for sign, kind, what, cure in _VERDICTS:
            if sign.search(verdict):
                return kind(f"{self.shown} {what} ({text}); {cure}")
        return self._nobody_there("", text)

    def _nobody_there(self, why: str, text: str) -> StoreUnreachableError:
        """What it means that no server answered, or none that was understood."""
        if _NOT_FOUND in why:
            return AwayError(
                f"{self.shown} is on a host that was not found ({text}); check its name, and "
                f"the name service"
            )
        if _MISWRITTEN.search(why):
            return StoreMisplacedError(
                f"{self.shown} cannot be used as it is written ({text}); check it, and what "
                f"is behind the ?"
            )
        return AwayError(
            f"{self.shown} cannot be reached ({text}); check host and port, and that the "
            f"server runs"
        )


class ComingError(StoreUnreachableError):
    """The server is there, but takes no connections yet, or not any more."""


class CrowdedError(StoreBusyError):
    """The server has no connection left for us."""


class AwayError(StoreUnreachableError):
    """There is nobody; a server that was there before may come back."""


_Refusal = type[StoreUnreachableError] | type[StoreBusyError]
_VERDICTS: tuple[tuple[re.Pattern[str], _Refusal, str, str], ...] = (
    (
        re.compile(r"database .*does not exist|no such database|not currently accepting"),
        StoreMisplacedError,
        "leads to no database",
        "check its name, make it with createdb, or let it take connections",
    ),
    (
        re.compile(
            r"authentication failed|pg_hba\.conf|does not exist|not permitted|permission "
            r"denied|no such user|user name specified"
        ),
        LoginRefusedError,
        "lets nobody in",
        "check user, password and pg_hba.conf",
    ),
    (
        re.compile(r"configuration parameter|invalid|parameter .*cannot be|unsupported"),
        StoreMisplacedError,
        "asks for what the server does not know",
        "check what is behind the ?",
    ),
    (
        re.compile(
            r"too many clients|remaining connection slots|too many connections|no more connections"
        ),
        CrowdedError,
        "has no connection left",
        "end some, or raise max_connections",
    ),
    (
        re.compile(r"starting up|shutting down|recovery|not yet accepting"),
        ComingError,
        "is starting up or shutting down",
        "try again",
    ),
)
"""What the server may say, what that means, and the cure; the first that fits."""

_HIDDEN = "postgresql://***"
"""A URL in which nobody knows where the password ends."""
_ENCODE = (
    "write it as postgresql://user@host:5432/database, with / # ? @ % in a password percent-encoded"
)
_LAST_PORT = 65535
_PATH = re.compile(r"[^/]*//[^/?]*/([^?]*)")


def _is_torn(url: str, parts: dict[str, Any]) -> bool:
    """Whether a sign in the password has cut it in two, so that a piece of it stands for the
    host, the port or the database.
    """
    path = _PATH.match(url)
    ports = str(parts.get("port") or "").split(",")
    hosts = str(parts.get("host") or "").split(",")
    is_in_path = path is not None and "@" in path[1]
    return is_in_path or any("@" in host[1:] for host in hosts) or not all(map(_is_port, ports))


def _is_port(text: str) -> bool:
    bare = text.strip()
    return not bare or (bare.isascii() and bare.isdigit() and 1 <= int(bare) <= _LAST_PORT)


def _of_the_server(said: str) -> str | None:
    """What the server gave as its reason, without the names in it, which users choose; None if
    it was not the server who spoke.
    """
    verdicts = [line.partition("FATAL:")[2] for line in said.splitlines() if "FATAL:" in line]
    return re.sub(r'".*"', '""', verdicts[-1]) if verdicts else None


def _without_names(said: str) -> str:
    return re.sub(r'"[^"]*"', '""', said)


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
    poll = (
        select.poll()
    )  # the socket is another one when libpq goes on to the next address of a host
    poll.register(fileno, events)
    if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
        raise CallTimeoutError
