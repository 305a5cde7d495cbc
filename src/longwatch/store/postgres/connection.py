"""One connection to a PostgreSQL server that sends statements in pipelines: several statements, one
wait for all their replies.

It uses libpq directly (`psycopg.pq`) instead of psycopg's connections. Every wait has to end at a
deadline, also on a network that drops packets, and a pipeline of prepared statements saves most
round trips. Statements are sent, a sync ends a segment of them, and the server replies to segments
in order. A segment that no caller waits for is `unawaited`: the next user of the connection reads
and discards its reply.

A connection can stay silent for good: the machine behind it is gone, or a firewall has forgotten
it. A call would then wait until its deadline. Some statements may take long, but BEGIN does not.
Where a segment begins with such a statement, its reply is requested ahead of the others (`probe`)
and must arrive within part of the time.
"""

from __future__ import annotations

import hashlib
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
"""Statements that one connection keeps prepared. Further statements are sent whole each time."""

PROBE_TIMEOUT = 5.0
"""Seconds that the reply to a probe may take, at most a quarter of the call's remaining time."""

BoundStatement = tuple[bytes, Sequence[Any]]
"""A statement and the values of its parameters."""
_PreparedKey = tuple[bytes, tuple[int, ...]]
"""A statement and the types of its values, which identify a prepared statement."""

_FAILED = frozenset({pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE})
_NOT_EXECUTED = _FAILED | {pq.ExecStatus.PIPELINE_ABORTED}
_FATAL_SEVERITIES = frozenset({b"FATAL", b"PANIC"})


class PostgresConnection:
    """A connection that one thread uses at a time. A broken connection stays broken."""

    def __init__(self, pgconn: PGconn) -> None:
        self.fileno = pgconn.socket
        self.connected_at = self.used_at = time.monotonic()
        self.announced_pid = pgconn.backend_pid
        """The server's process, or any number if a pooler is in between."""
        self.closed_reason = ""
        self.names_statements = False
        """Whether to prepare statements. A pooler that lends the server's connection for one
        transaction would have them in another one.
        """
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

    # --- statements ---

    def send(self, text: bytes, values: Sequence[Any] = ()) -> None:
        """Add a statement to the segment. It is sent when the segment ends."""
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
        """Request the reply to the statements so far ahead of the rest: they take no time, so a
        late reply means a dead connection.
        """
        try:
            self._pgconn.send_flush_request()
        except psycopg.Error as error:
            self._fail(error)
        self._is_probing = True

    def sync(
        self, deadline: Deadline, *, trailing: Sequence[BoundStatement] = ()
    ) -> list[PGresult]:
        """End the segment and wait for its replies, one for each statement. Raises the error of a
        statement that failed.

        The `trailing` statements are sent with it, each in its own segment, and no caller waits for
        them.
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
        """End the segment and send it without waiting for the reply."""
        self._end_segment()
        self._unawaited += 1
        self._is_probing = False
        self._flush(deadline)

    def query(self, text: bytes, values: Sequence[Any], deadline: Deadline) -> list[Row]:
        """Run one statement in its own segment and return its rows."""
        self.send(text, values)
        return self.rows(self.sync(deadline)[0])

    def rows(self, result: PGresult) -> list[Row]:
        """Return the rows of a result."""
        if not result.nfields:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    # --- state ---

    @property
    def is_idle(self) -> bool:
        """Whether no statement or reply is outstanding that a caller waits for."""
        return (
            not self.closed_reason
            and not self._segment_size
            and len(self._unread_segments) == self._unawaited
        )

    def is_alive(self) -> bool:
        """Return whether the connection still seems open. Detects a server that has closed it; does
        not wait.
        """
        with suppress(ConnectionLostError):
            while not self.closed_reason and self._poll.poll(0):
                self._consume_input()
        return not self.closed_reason

    def notifications(self) -> list[str]:
        """Return the payloads received since the last call. Does not wait."""
        self._consume_input()
        found = []
        while (notification := self._pgconn.notifies()) is not None:
            found.append(notification.extra.decode())
        return found

    def close(self, reason: str = "it was closed") -> None:
        """Close the connection. The server still executes statements that were sent. Idempotent."""
        if not self.closed_reason:
            self.closed_reason = reason
            self._pgconn.finish()

    def abandon(self) -> None:
        """In a forked child: close the copy of the socket without notifying the server, whose
        session belongs to the parent.
        """
        if not self.closed_reason:
            self.closed_reason = "it belongs to the parent of this forked process"
            os.close(self.fileno)

    # --- internals ---

    def _prepare(self, key: _PreparedKey) -> bytes:
        """Send a statement to be prepared, and treat it as prepared until a reply shows that it
        failed. Returns an empty name when none is to be prepared.
        """
        if self._prepared_count >= MAX_PREPARED or not self.names_statements:
            return b""
        self._prepared_count += 1
        name = self._prepared[key] = _statement_name(key)
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
        """Read and discard the replies to unawaited segments."""
        while self._unawaited:
            self._unawaited -= 1
            with suppress(psycopg.Error):
                self._read_segment(deadline)

    def _read_probe(self, deadline: Deadline) -> list[PGresult]:
        """Read the outstanding replies, and the first reply of the segment if it was probed.

        The probed reply has to arrive soon; otherwise the connection fails.
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
            self._fail(psycopg.OperationalError(f"the server was silent for {seconds:.1f} s"))

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
        """Return the next result. An empty result separates those of two statements; two in a row
        mean that none is left.
        """
        result = self._next_result(deadline) or self._next_result(deadline)
        if result is None:
            self._fail(
                psycopg.OperationalError("the server's replies do not match the statements sent")
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
        """Send the buffered output. Reads input meanwhile, so that neither side waits for the
        other.
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


def _statement_name(key: _PreparedKey) -> bytes:
    """Return the name of a statement. It follows from the statement, so that behind a pooler a name
    never means the statement of another process.
    """
    return b"lw" + hashlib.blake2b(repr(key).encode(), digest_size=12).hexdigest().encode()


def poll_milliseconds(deadline: Deadline) -> float | None:
    """Return the time until a deadline in milliseconds, or None if there is none, as `poll`
    expects.
    """
    left = deadline.remaining()
    return None if left is None else left * 1000
