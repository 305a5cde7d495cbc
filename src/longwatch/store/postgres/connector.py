"""Parses the URL of a PostgreSQL server and connects to it.

Every connection begins with a check of the server's settings.
"""

from __future__ import annotations

import re
import select
import warnings
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGconn

from longwatch.core.deadline import Deadline
from longwatch.core.masking import mask_text
from longwatch.errors import (
    StoreAuthenticationError,
    StoreBusyError,
    StoreLocationError,
    StoreUnreachableError,
    UnsafeSettingsWarning,
    UsageError,
)
from longwatch.store.postgres.connection import PostgresConnection, poll_milliseconds
from longwatch.store.postgres.errors import CallTimeoutError

MIN_SERVER_VERSION = 13
_DEFAULTS = {
    "application_name": "longwatch",
    "client_encoding": "utf8",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""The timeouts detect a dead machine during a call, so that there is time left for another
attempt.
"""
_INVALID_URL = re.compile(
    r"invalid|certificate|does not support SSL|no password supplied|not "
    r"supported|authentication method|service file|of service"
    r"|could not parse network address|expected authentication request"
)
_HOST_NOT_FOUND = "could not translate host name"
_LIBPQ_HINT = re.compile(r" Is the server running [^?]*\?")


class ServerAddress:
    """The address of a server, from a URL. The URL may contain all that libpq accepts: several
    hosts, TLS, `options=-csearch_path=…`.

    Two parameters are Longwatch's own. `pooled` says whether the address is that of a pooler that
    lends a server's connection for one transaction; without it, that is found out. `listen_url` is
    the server's own address, where such a process can listen.
    """

    def __init__(self, url: str) -> None:
        libpq_url, own = split_own_parameters(url)
        self.pooled = _read_pooled(own.get("pooled"))
        self.listener = ServerAddress(own["listen_url"]) if "listen_url" in own else None
        try:
            self._parts: dict[str, Any] = conninfo_to_dict(libpq_url)
        except psycopg.Error:  # its text may contain the password
            raise UsageError(
                f"{_HIDDEN_URL} cannot be read; {_ENCODE_CURE}, and check the names after the ?"
            ) from None
        self.masked_url = mask_text(url)
        if _has_split_password(libpq_url, self._parts):
            raise UsageError(
                f"{_HIDDEN_URL} cannot be read; {_ENCODE_CURE}, and the port is a number from "
                f"1 to 65535"
            )
        counts = {len(values) for values in self._host_lists().values()} - {1}
        if len(counts) > 1:
            raise UsageError(
                f"{self.masked_url} names different numbers of hosts and ports; name one port "
                f"for all hosts, or one for each"
            )

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two addresses that lead to the same tables, whichever user connects."""
        return "postgresql", *(
            self._parts.get(name)
            for name in ("hostaddr", "host", "port", "dbname", "service", "options")
        )

    def conninfos(self) -> list[str]:
        """Return one connection string for each host, in the order of the attempts."""
        lists = self._host_lists()
        count = max((len(values) for values in lists.values()), default=1)
        return [
            make_conninfo("", **{**_DEFAULTS, **self._parts, **_host_parts(lists, number)})
            for number in range(count)
        ]

    def _host_lists(self) -> dict[str, list[str]]:
        names = [name for name in ("host", "hostaddr", "port") if self._parts.get(name)]
        return {name: str(self._parts[name]).split(",") for name in names}

    def connect(self, deadline: Deadline) -> PostgresConnection:
        """Make a new connection. Divides the remaining time among the hosts, so that a host that
        drops packets leaves time for the next.
        """
        attempts = self.conninfos()
        for left in range(len(attempts), 0, -1):
            seconds = deadline.remaining()
            share = deadline.capped(None if seconds is None else seconds / left)
            try:
                return self._connect_one(attempts[-left], share)
            except (StoreUnreachableError, CallTimeoutError):
                if left == 1:
                    raise
        raise AssertionError("there is always a last attempt")

    def _connect_one(self, conninfo: str, deadline: Deadline) -> PostgresConnection:
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            _handshake(pgconn, deadline)
        except psycopg.Error as error:
            pgconn.finish()
            raise self._refusal_error(str(error)) from error
        except CallTimeoutError:
            pgconn.finish()
            raise CallTimeoutError(
                f"{self.masked_url} did not answer in time; check host and port, and the network"
            ) from None
        if pgconn.server_version < MIN_SERVER_VERSION * 10_000:
            raise UsageError(
                f"{self.masked_url} runs PostgreSQL {pgconn.server_version // 10_000}; "
                f"upgrade it to "
                f"{MIN_SERVER_VERSION} or newer"
            )
        return PostgresConnection(pgconn)

    def _refusal_error(self, message: str) -> StoreUnreachableError | StoreBusyError:
        """Return the store error for a failed attempt. libpq does not expose the error code, so the
        text decides.
        """
        text = mask_text(_LIBPQ_HINT.sub("", " ".join(message.split())))
        reason = _server_reason(message)
        if reason is None:
            return self._no_server_error(_without_names(message), text)
        for pattern, error_type, what, cure in _REFUSALS:
            if pattern.search(reason):
                return error_type(f"{self.masked_url} {what} ({text}); {cure}")
        return self._no_server_error("", text)

    def _no_server_error(self, reason: str, text: str) -> StoreUnreachableError:
        """Return the error for an attempt that no server answered in a known way."""
        if _HOST_NOT_FOUND in reason:
            return ServerUnreachableError(
                f"{self.masked_url} names a host that was not found ({text}); check the host name "
                f"and the name service"
            )
        if _INVALID_URL.search(reason):
            return StoreLocationError(
                f"{self.masked_url} cannot be used as written ({text}); check it, and the "
                f"parameters after the ?"
            )
        return ServerUnreachableError(
            f"{self.masked_url} cannot be reached ({text}); check host and port, and that the "
            f"server runs"
        )


class ServerNotReadyError(StoreUnreachableError):
    """The server is starting up or shutting down and accepts no connections."""


class TooManyConnectionsError(StoreBusyError):
    """The server has no free connection."""


class ServerUnreachableError(StoreUnreachableError):
    """No server replied. A server that was reached before may come back."""


_RefusalType = type[StoreUnreachableError] | type[StoreBusyError]
_REFUSALS: tuple[tuple[re.Pattern[str], _RefusalType, str, str], ...] = (
    (
        re.compile(r"database .*does not exist|no such database|not currently accepting"),
        StoreLocationError,
        "names no database that accepts connections",
        "check its name, create it with createdb, or allow connections to it",
    ),
    (
        re.compile(
            r"authentication failed|pg_hba\.conf|does not exist|not permitted|permission "
            r"denied|no such user|user name specified"
        ),
        StoreAuthenticationError,
        "refuses this user",
        "check user, password and pg_hba.conf",
    ),
    (
        re.compile(r"configuration parameter|invalid|parameter .*cannot be|unsupported"),
        StoreLocationError,
        "has a parameter that the server does not accept",
        "check the parameters after the ?",
    ),
    (
        re.compile(
            r"too many clients|remaining connection slots|too many connections|no more connections"
        ),
        TooManyConnectionsError,
        "has no free connection",
        "close some, or raise max_connections",
    ),
    (
        re.compile(r"starting up|shutting down|recovery|not yet accepting"),
        ServerNotReadyError,
        "is starting up or shutting down",
        "try again",
    ),
)
"""Patterns of the server's refusals, with the error, its text and the cure. The first match
wins.
"""

_HIDDEN_URL = "postgresql://***"
"""Shown instead of a URL in which the end of the password is unclear."""
_ENCODE_CURE = (
    "write it as postgresql://user@host:5432/database, with / # ? @ % in a password percent-encoded"
)
_OWN_PARAMETERS = frozenset({"pooled", "listen_url"})
_LAST_PORT = 65535
_PATH = re.compile(r"[^/]*//[^/?]*/([^?]*)")


def split_own_parameters(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without the parameters that libpq does not know, and those parameters."""
    head, mark, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    own = {name: unquote(value) for name, _, value in pairs if name in _OWN_PARAMETERS}
    kept = "&".join("".join(pair) for pair in pairs if pair[0] not in _OWN_PARAMETERS)
    return (f"{head}{mark if kept else ''}{kept}" if own else url), own


def _read_pooled(text: str | None) -> bool | None:
    if text not in {None, "true", "false"}:
        raise UsageError(f"expected pooled=true or pooled=false in the URL, got pooled={text!r}")
    return None if text is None else text == "true"


def _has_split_password(url: str, parts: dict[str, Any]) -> bool:
    """Return whether a special character in the password has split it, so that part of it is taken
    for the host, the port or the database.
    """
    path = _PATH.match(url)
    ports = str(parts.get("port") or "").split(",")
    hosts = str(parts.get("host") or "").split(",")
    is_in_path = path is not None and "@" in path[1]
    return is_in_path or any("@" in host[1:] for host in hosts) or not all(map(_is_port, ports))


def _is_port(text: str) -> bool:
    bare = text.strip()
    return not bare or (bare.isascii() and bare.isdigit() and 1 <= int(bare) <= _LAST_PORT)


def _server_reason(message: str) -> str | None:
    """Return the server's reason without the quoted names, which users choose. None if the message
    is not the server's.
    """
    reasons = [line.partition("FATAL:")[2] for line in message.splitlines() if "FATAL:" in line]
    return re.sub(r'".*"', '""', reasons[-1]) if reasons else None


def _without_names(message: str) -> str:
    return re.sub(r'"[^"]*"', '""', message)


def _host_parts(lists: dict[str, list[str]], number: int) -> dict[str, str]:
    """Return the parameters of one host. A port that is named once applies to all hosts."""
    return {name: values[number if len(values) > 1 else 0] for name, values in lists.items()}


def _handshake(pgconn: PGconn, deadline: Deadline) -> None:
    events = select.POLLOUT
    while True:
        if pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(pgconn.get_error_message())
        _wait_for_socket(pgconn.socket, events, deadline)
        match pgconn.connect_poll():
            case pq.PollingStatus.OK:
                return
            case pq.PollingStatus.READING:
                events = select.POLLIN
            case pq.PollingStatus.WRITING:
                events = select.POLLOUT
            case _:
                raise psycopg.OperationalError(pgconn.get_error_message())


def _wait_for_socket(fileno: int, events: int, deadline: Deadline) -> None:
    poll = select.poll()  # libpq opens another socket when it tries the next address of a host
    poll.register(fileno, events)
    if not poll.poll(poll_milliseconds(deadline)):
        raise CallTimeoutError


_DANGERS = {
    "fsync": "a crash of its machine may damage the database",
    "full_page_writes": "a power cut may damage the database",
    "synchronous_commit": "a crash of the server may lose the last sends and settles",
}
_SAFE_ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
"""Database encodings that can store every text. With others a name or an error might not be
writable.
"""
_UTF8_CURE = "create another with `createdb --encoding=UTF8 --template=template0 NAME`"
_SERVER_FACTS = (
    "SELECT pg_backend_pid(), current_setting('server_encoding'), "
    + ", ".join(f"current_setting('{name}')" for name in _DANGERS)
).encode()


class ServerFacts(NamedTuple):
    """What a connection leads to."""

    pid: int
    """The server's process. A pooler has announced another one at the start of the connection."""
    faults: list[str]
    """The unsafe settings, each with its cure."""


def check_server(
    connection: PostgresConnection, masked_url: str, deadline: Deadline
) -> ServerFacts:
    """Return the facts of the server. Raises StoreLocationError for a database that cannot store
    every text.
    """
    [(pid, encoding, *settings)] = connection.query(_SERVER_FACTS, (), deadline)
    if encoding not in _SAFE_ENCODINGS:
        raise StoreLocationError(
            f"{masked_url} uses the encoding {encoding}, which cannot store every text; "
            f"{_UTF8_CURE}"
        )
    faults = [
        f"{name} is off, so {danger}; set it to on"
        for (name, danger), value in zip(_DANGERS.items(), settings, strict=True)
        if value == "off"
    ]
    return ServerFacts(pid, faults)


def warn_unsafe(masked_url: str, faults: list[str]) -> None:
    for fault in faults:
        warnings.warn(f"{masked_url}: {fault}", UnsafeSettingsWarning, stacklevel=2)
