"""Closes connections on which no request comes. Pure: the server reports requests to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from longwatch.core.clock import Clock

IDLE_TIMEOUT = 30.0
"""Seconds in which a connection must send a request, and read the answer to the one before."""


class Transport(Protocol):
    """The transport of a connection."""

    def abort(self) -> None:
        """Close it now, also if the client reads nothing."""


class Connection(Protocol):
    """A connection of the HTTP server."""

    @property
    def transport(self) -> Transport | None:
        """None once it is closed."""


@dataclass(slots=True)
class _Use:
    """Whether a request of a connection is handled, and when the last one was."""

    at: float
    requests: int = 0


class IdleConnections:
    """Knows since when each connection has been idle. Used on the event loop."""

    def __init__(self, *, clock: Clock, timeout: float = IDLE_TIMEOUT) -> None:
        self._clock = clock
        self._timeout = timeout
        self._uses: dict[Connection, _Use] = {}

    def begin(self, connection: Connection) -> None:
        """Note that a request of this connection is handled from now on."""
        self._use(connection).requests += 1

    def end(self, connection: Connection) -> None:
        """Note that its answer is made."""
        use = self._use(connection)
        use.requests -= 1
        use.at = self._clock.monotonic()

    def close_idle(self, connections: Iterable[Connection]) -> None:
        """Close those of the open connections that have been idle for too long, and forget those
        that are not open.
        """
        oldest = self._clock.monotonic() - self._timeout
        self._uses = {connection: self._use(connection) for connection in connections}
        for connection, use in self._uses.items():
            if not use.requests and use.at < oldest and connection.transport is not None:
                connection.transport.abort()

    def _use(self, connection: Connection) -> _Use:
        return self._uses.setdefault(connection, _Use(self._clock.monotonic()))
