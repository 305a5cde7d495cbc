"""One connection to a PostgreSQL server, spoken to in pipelines: several statements on their way,
one wait for all of them.

It stands on libpq itself (`psycopg.pq`), not on psycopg's connections, because every wait has to
end at a deadline, also on a network that swallows what is sent, and because a pipeline of prepared
statements saves most of the round trips. Statements are sent, a sync ends a segment of them, and
segments are answered in order. A segment that no caller waits for is
`unawaited`: the next user of the connection reads and discards its answer.

A connection can be silent for good: the machine behind it is gone, or something between has
forgotten it. Then a call would wait for nothing all its time. A statement may take long, but not
every one: where the segment begins with one that cannot, its answer is asked for ahead of the
others (`probe`), and has to come within a part of the time.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from longwatch.core.deadline import Deadline
from longwatch.store.database import Row
from longwatch.store.postgres.errors import CallTimeoutError, ConnectionLostError
from longwatch.store.postgres.statement import encode

MAX_PREPARED = 256
"""Statements that one connection keeps prepared; further ones are sent whole each time."""

PROBE_TIMEOUT = 5.0
"""Seconds that the answer to a probe may take; a quarter of what the call has left if that is
less.
"""

BoundStatement = tuple[bytes, Sequence[Any]]
"""A statement and the values for its places."""
_PreparedKey = tuple[bytes, tuple[int, ...]]
"""A statement and the types of its values: what is prepared."""

_FAILED = frozenset({pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE})
_NOT_EXECUTED = _FAILED | {pq.ExecStatus.PIPELINE_ABORTED}
_FATAL_SEVERITIES = frozenset({b"FATAL", b"PANIC"})


class PostgresConnection:
    """A connection that one thread uses at a time. Once it is broken it stays so."""

    def __init__(self, pgconn: PGconn) -> None:
        self.fileno = pgconn.socket
        self.connected_at = time.monotonic()
        self.closed_reason = ""
        self._pgconn = pgconn
        self._transformer = Transformer()
        self._prepared: dict[_PreparedKey, bytes] = {}
        self._prepared_count = 0
        self._preparing: dict[int, _PreparedKey] = {}
        self._segment_size = 0
        self._unread_segments: deque[dict[int, _PreparedKey]] = deque()
        self._unawaited = 0
        self._is_probing = False
        self._poll = select.poll()
        self._poll.register(self.fileno, select.POLLIN)
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()

    # --- speaking ---

    def send(self, text: bytes, values: Sequence[Any] = ()) -> None:
        """Add a statement to the segment; it leaves with that."""
        self._require_open()
        encoded_values = [encode(value, self._transformer) for value in values]
        kinds, data, formats = zip(*encoded_values, strict=True) if encoded_values else ((), (), ())
        try:
            if name := self._prepared.get((text, kinds)) or self._prepare((text, kinds)):
                self._pgconn.send_query_prepared(name, data, formats, 1)
            else:
                self._pgconn.send_query_params(text, data, kinds, formats, 1)
        except psycopg.Error as error:
            self._fail(error)
        self._segment_size += 1

    def probe(self) -> None:
        """What is in the segment so far takes no time: have it answered ahead of the rest, or
        the connection counts as lost.
        """
        try:
            self._pgconn.send_flush_request()
        except psycopg.Error as error:
            self._fail(error)
        self._is_probing = True

    def sync(
        self, deadline: Deadline, *, trailing: Sequence[BoundStatement] = ()
    ) -> list[PGresult]:
        """End the segment and wait for its answers, one for each statement; if one failed, that is
        raised.

        The `trailing` statements leave with it, each in a segment of its own, and no caller waits
        for them.
        """
        self._end_segment()
        for text, values in trailing:
            self.send(text, values)
            self._end_segment()
        self._flush(deadline)
        first = self._read_probe(deadline)
        self._unawaited = len(trailing)
        return self._read_segment(deadline, *first)

    def sync_nowait(self, deadline: Deadline) -> None:
        """End the segment and have it leave; nobody waits for it."""
        self._end_segment()
        self._unawaited += 1
        self._is_probing = False
        self._flush(deadline)

    def query(self, text: bytes, values: Sequence[Any], deadline: Deadline) -> list[Row]:
        """One statement by itself, and what it answers."""
        self.send(text, values)
        return self.rows(self.sync(deadline)[0])

    def rows(self, result: PGresult) -> list[Row]:
        """What a statement selected or returned."""
        if not result.nfields:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    # --- how it stands ---

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in the middle of something."""
        return (
            not self.closed_reason
            and not self._segment_size
            and len(self._unread_segments) == self._unawaited
        )

    def is_alive(self) -> bool:
        """Whether nothing is known against it: a server that goes closes its connections, and
        that can be seen from here.
        """
        with suppress(ConnectionLostError):
            while not self.closed_reason and self._poll.poll(0):
                self._consume_input()
        return not self.closed_reason

    def notifications(self) -> list[str]:
        """What was announced since the last time; does not wait."""
        self._consume_input()
        found = []
        while (notification := self._pgconn.notifies()) is not None:
            found.append(notification.extra.decode())
        return found

    def close(self, reason: str = "it was closed") -> None:
        """Close it; statements that were sent are executed all the same. Idempotent."""
        if not self.closed_reason:
            self.closed_reason = reason
            self._pgconn.finish()

    def abandon(self) -> None:
        """In a forked child: close the copy of the socket without a word to the server, which
        goes on with the parent.
        """
        if not self.closed_reason:
            self.closed_reason = "it belongs to the process that this one was forked from"
            os.close(self.fileno)

    # --- inside ---

    def _prepare(self, key: _PreparedKey) -> bytes:
        """Send it to be prepared, and take it for prepared until its answer says otherwise;
        empty when there are too many.
        """
        if self._prepared_count >= MAX_PREPARED:
            return b""
        self._prepared_count += 1
        name = self._prepared[key] = b"lw%d" % self._prepared_count
        self._pgconn.send_prepare(name, *key)
        self._preparing[self._segment_size] = key
        self._segment_size += 1
        return name

    def _end_segment(self) -> None:
        self._require_open()
        try:
            self._pgconn.pipeline_sync()
        except psycopg.Error as error:
            self._fail(error)
        self._unread_segments.append(self._preparing)
        self._preparing, self._segment_size = {}, 0

    def _read_unawaited(self, deadline: Deadline) -> None:
        """Read what is owed by those who did not wait for it."""
        while self._unawaited:
            self._unawaited -= 1
            with suppress(psycopg.Error):
                self._read_segment(deadline)

    def _read_probe(self, deadline: Deadline) -> list[PGresult]:
        """Once what is owed was read: the first answer of the segment if it is the proof, which
        has to come soon.
        """
        if not self._is_probing:
            self._read_unawaited(deadline)
            return []
        self._is_probing = False
        left = deadline.remaining()
        seconds = PROBE_TIMEOUT if left is None else min(PROBE_TIMEOUT, left / 4)
        probe_deadline = deadline.capped(seconds)
        try:
            self._read_unawaited(probe_deadline)
            return [self._read_result(probe_deadline)]
        except CallTimeoutError:
            self._fail(psycopg.OperationalError(f"it was silent for {seconds:.1f} s"))

    def _read_segment(self, deadline: Deadline, *first: PGresult) -> list[PGresult]:
        results = list(first)
        while (result := self._read_result(deadline)).status != pq.ExecStatus.PIPELINE_SYNC:
            results.append(result)
        prepared = self._unread_segments.popleft()
        failed = next((each for each in results if each.status in _FAILED), None)
        if failed is not None:
            for index, key in prepared.items():
                if results[index].status in _NOT_EXECUTED:
                    del self._prepared[key]
            raise error_from_result(failed)
        return (
            [result for index, result in enumerate(results) if index not in prepared]
            if prepared
            else results
        )

    def _read_result(self, deadline: Deadline) -> PGresult:
        """The next answer. Between those of two statements there is an empty one; two in a row
        would be the end of them all.
        """
        result = self._next_result(deadline) or self._next_result(deadline)
        if result is None:
            self._fail(
                psycopg.OperationalError("the server's answers do not fit what it was asked")
            )
        if result.status in _FAILED:
            severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
            if severity in _FATAL_SEVERITIES or self._pgconn.status == pq.ConnStatus.BAD:
                self._fail(error_from_result(result))
        return result

    def _next_result(self, deadline: Deadline) -> PGresult | None:
        while self._pgconn.is_busy():
            self._wait(select.POLLIN, deadline)
            self._consume_input()
        return self._pgconn.get_result()

    def _flush(self, deadline: Deadline) -> None:
        """Send what waits to be sent; what comes meanwhile is read, so that neither side waits
        for the other.
        """
        try:
            while self._pgconn.flush():
                if self._wait(select.POLLIN | select.POLLOUT, deadline) & ~select.POLLOUT:
                    self._pgconn.consume_input()
        except psycopg.Error as error:
            self._fail(error)

    def _consume_input(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            self._fail(error)

    def _wait(self, events: int, deadline: Deadline) -> int:
        self._poll.modify(self.fileno, events)
        ready = self._poll.poll(poll_milliseconds(deadline))
        self._poll.modify(self.fileno, select.POLLIN)
        if not ready:
            raise CallTimeoutError(
                "the server did not answer in time; nothing was written, try again"
            )
        return ready[0][1]

    def _require_open(self) -> None:
        if self.closed_reason:
            raise ConnectionLostError(f"the connection cannot be used: {self.closed_reason}")

    def _fail(self, error: psycopg.Error) -> NoReturn:
        text = " ".join(str(error).split()) or "the server closed the connection"
        self.close(text)
        raise ConnectionLostError(text) from error


def poll_milliseconds(deadline: Deadline) -> float | None:
    """The time until a deadline, as `poll` takes it."""
    left = deadline.remaining()
    return None if left is None else left * 1000
