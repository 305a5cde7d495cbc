"""Connections on which no request comes are closed."""

from __future__ import annotations

from longwatch.core.fake_clock import FakeClock
from longwatch.page.connections import IDLE_TIMEOUT, IdleConnections


class OpenConnection:
    """A connection that notes whether it was closed. It is its own transport."""

    def __init__(self) -> None:
        self.closed = False

    @property
    def transport(self) -> OpenConnection:
        return self

    def abort(self) -> None:
        self.closed = True


def test_a_connection_without_a_request_is_closed_and_one_that_is_answered_is_not() -> None:
    clock, silent, busy = FakeClock(), OpenConnection(), OpenConnection()
    connections = IdleConnections(clock=clock)
    connections.begin(busy)
    connections.close_idle([silent, busy])
    clock.advance(IDLE_TIMEOUT + 1)
    connections.close_idle([silent, busy])

    assert (True, False) == (silent.closed, busy.closed)

    connections.end(busy)
    connections.close_idle([busy])
    assert not busy.closed

    clock.advance(IDLE_TIMEOUT + 1)
    connections.close_idle([busy])
    assert busy.closed
