"""One connection to a PostgreSQL server, spoken to in pipelines: several statements on their way,
one wait for all of them.

It stands on libpq itself (`psycopg.pq`), not on psycopg's connections, because every wait has to
end at a deadline, also on a network that swallows what is sent, and because a pipeline of prepared
statements saves most of the round trips. Statements are sent, a sync ends a segment of them, and
segments are answered in order. A segment that nobody waits for is `owed`: its answer is read and
forgotten by whoever uses the connection next.

A connection can be silent for good: the machine behind it is gone, or something between has
forgotten it. Then a call would wait for nothing all its time. A statement may take long, but not
every one: where the segment begins with one that cannot, its answer is asked for ahead of the
others (`prove`), and has to come within a part of the time.

A deadline is a moment on `time.monotonic()`.
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

from longwatch.store.database import Row
from longwatch.store.postgres_errors import CallTimeoutError, ConnectionLostError
from longwatch.store.postgres_statement import encoded

MOST_PREPARED = 256
"""Statements that one connection keeps prepared; further ones are sent whole each time."""

PROVE_WITHIN = 5.0
"""Seconds that the answer to a proof may take at the most; a quarter of what the call has left
if that is less.
"""

Order = tuple[bytes, Sequence[Any]]
"""A statement and the values for its places."""
_Form = tuple[bytes, tuple[int, ...]]
"""A statement and the types of its values: what is prepared."""

_FAILED = frozenset({pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE})
_UNDONE = _FAILED | {pq.ExecStatus.PIPELINE_ABORTED}
_THE_END = frozenset({b"FATAL", b"PANIC"})


class Wire:
    """A connection that one thread uses at a time. Once it is broken it stays so."""

    def __init__(self, pgconn: PGconn) -> None:
        self.fileno = pgconn.socket
        self.made_at = time.monotonic()
        self.trouble = ""
        self._pgconn = pgconn
        self._transformer = Transformer()
        self._prepared: dict[_Form, bytes] = {}
        self._names = 0
        self._preparing: dict[int, _Form] = {}
        self._in_segment = 0
        self._unread: deque[dict[int, _Form]] = deque()
        self._owed = 0
        self._is_proving = False
        self._poll = select.poll()
        self._poll.register(self.fileno, select.POLLIN)
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()

    # --- speaking ---

    def send(self, text: bytes, values: Sequence[Any] = ()) -> None:
        """Add a statement to the segment; it leaves with that."""
        self._require_whole()
        wired = [encoded(value, self._transformer) for value in values]
        kinds, data, formats = zip(*wired, strict=True) if wired else ((), (), ())
        try:
            if name := self._prepared.get((text, kinds)) or self._prepare((text, kinds)):
                self._pgconn.send_query_prepared(name, data, formats, 1)
            else:
                self._pgconn.send_query_params(text, data, kinds, formats, 1)
        except psycopg.Error as error:
            self._lose(error)
        self._in_segment += 1

    def prove(self) -> None:
        """What is in the segment so far takes no time: have it answered ahead of the rest, or
        the connection counts as lost.
        """
        try:
            self._pgconn.send_flush_request()
        except psycopg.Error as error:
            self._lose(error)
        self._is_proving = True

    def answer(self, deadline: float, *, behind: Sequence[Order] = ()) -> list[PGresult]:
        """End the segment and wait for its answers, one for each statement; if one failed, that is
        raised.

        What comes `behind` leaves with it, each statement in a segment of its own, and nobody waits
        for it.
        """
        self._sync()
        for text, values in behind:
            self.send(text, values)
            self._sync()
        self._flush(deadline)
        first = self._paid(deadline)
        self._owed = len(behind)
        return self._segment(deadline, *first)

    def leave(self, deadline: float) -> None:
        """End the segment and have it leave; nobody waits for it."""
        self._sync()
        self._owed += 1
        self._is_proving = False
        self._flush(deadline)

    def ask(self, text: bytes, values: Sequence[Any], deadline: float) -> list[Row]:
        """One statement by itself, and what it answers."""
        self.send(text, values)
        return self.rows(self.answer(deadline)[0])

    def rows(self, result: PGresult) -> list[Row]:
        """What a statement selected or returned."""
        if not result.nfields:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    # --- how it stands ---

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is in the middle of something."""
        return not self.trouble and not self._in_segment and len(self._unread) == self._owed

    def is_alive(self) -> bool:
        """Whether nothing is known against it: a server that goes closes its connections, and
        that can be seen from here.
        """
        with suppress(ConnectionLostError):
            while not self.trouble and self._poll.poll(0):
                self._hear()
        return not self.trouble

    def notifications(self) -> list[str]:
        """What was announced since the last time; does not wait."""
        self._hear()
        found = []
        while (notification := self._pgconn.notifies()) is not None:
            found.append(notification.extra.decode())
        return found

    def close(self, trouble: str = "it was closed") -> None:
        """Say goodbye; what is owed is done all the same. Idempotent."""
        if not self.trouble:
            self.trouble = trouble
            self._pgconn.finish()

    def leave_behind(self) -> None:
        """In a forked child: close the copy of the socket without a word to the server, which
        goes on with the parent.
        """
        if not self.trouble:
            self.trouble = "it belongs to the process that this one was forked from"
            os.close(self.fileno)

    # --- inside ---

    def _prepare(self, form: _Form) -> bytes:
        """Send it to be prepared, and take it for prepared until its answer says otherwise;
        empty when there are too many.
        """
        if self._names >= MOST_PREPARED:
            return b""
        self._names += 1
        name = self._prepared[form] = b"lw%d" % self._names
        self._pgconn.send_prepare(name, *form)
        self._preparing[self._in_segment] = form
        self._in_segment += 1
        return name

    def _sync(self) -> None:
        self._require_whole()
        try:
            self._pgconn.pipeline_sync()
        except psycopg.Error as error:
            self._lose(error)
        self._unread.append(self._preparing)
        self._preparing, self._in_segment = {}, 0

    def _pay(self, deadline: float) -> None:
        """Read what is owed by those who did not wait for it."""
        while self._owed:
            self._owed -= 1
            with suppress(psycopg.Error):
                self._segment(deadline)

    def _paid(self, deadline: float) -> list[PGresult]:
        """Once what is owed was read: the first answer of the segment if it is the proof, which
        has to come soon.
        """
        if not self._is_proving:
            self._pay(deadline)
            return []
        self._is_proving = False
        now = time.monotonic()
        soon = now + max(min(PROVE_WITHIN, (deadline - now) / 4), 0.0)
        try:
            self._pay(soon)
            return [self._result(soon)]
        except CallTimeoutError:
            self._lose(psycopg.OperationalError(f"it was silent for {soon - now:.1f} s"))

    def _segment(self, deadline: float, *first: PGresult) -> list[PGresult]:
        results = list(first)
        while (result := self._result(deadline)).status != pq.ExecStatus.PIPELINE_SYNC:
            results.append(result)
        prepared = self._unread.popleft()
        failed = next((each for each in results if each.status in _FAILED), None)
        if failed is not None:
            for place, form in prepared.items():
                if results[place].status in _UNDONE:
                    del self._prepared[form]
            raise error_from_result(failed)
        return (
            [result for place, result in enumerate(results) if place not in prepared]
            if prepared
            else results
        )

    def _result(self, deadline: float) -> PGresult:
        """The next answer. Between those of two statements there is an empty one; two in a row
        would be the end of them all.
        """
        result = self._next(deadline) or self._next(deadline)
        if result is None:
            self._lose(
                psycopg.OperationalError("the server's answers do not fit what it was asked")
            )
        if result.status in _FAILED:
            severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
            if severity in _THE_END or self._pgconn.status == pq.ConnStatus.BAD:
                self._lose(error_from_result(result))
        return result

    def _next(self, deadline: float) -> PGresult | None:
        while self._pgconn.is_busy():
            self._wait(select.POLLIN, deadline)
            self._hear()
        return self._pgconn.get_result()

    def _flush(self, deadline: float) -> None:
        """Send what waits to be sent; what comes meanwhile is read, so that neither side waits
        for the other.
        """
        try:
            while self._pgconn.flush():
                if self._wait(select.POLLIN | select.POLLOUT, deadline) & ~select.POLLOUT:
                    self._pgconn.consume_input()
        except psycopg.Error as error:
            self._lose(error)

    def _hear(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            self._lose(error)

    def _wait(self, events: int, deadline: float) -> int:
        self._poll.modify(self.fileno, events)
        ready = self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
        self._poll.modify(self.fileno, select.POLLIN)
        if not ready:
            raise CallTimeoutError(
                "the server did not answer in time; nothing was written, try again"
            )
        return ready[0][1]

    def _require_whole(self) -> None:
        if self.trouble:
            raise ConnectionLostError(f"the connection cannot be used: {self.trouble}")

    def _lose(self, error: psycopg.Error) -> NoReturn:
        text = " ".join(str(error).split()) or "the server closed the connection"
        self.close(text)
        raise ConnectionLostError(text) from error
