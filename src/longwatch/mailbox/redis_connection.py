"""The connections of one process to one Redis server: one question, one answer, and what is known
when none comes.

A question fails in one of three ways. It could not be sent, or the server refused it: nothing was
done. Or it was sent and no answer came: then nobody knows. redis-py's own retries are off, because
they would repeat what must not be repeated.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self
from weakref import WeakSet

from redis import exceptions as redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from longwatch.core.masking import mask_text
from longwatch.errors import UnsafeSettingsWarning
from longwatch.mailbox.redis_errors import (
    AnswerLostError,
    answer_lost,
    is_demoted,
    refusal,
    unreachable,
)
from longwatch.mailbox.redis_line import Line
from longwatch.mailbox.redis_scripts import load_script
from longwatch.mailbox.redis_url import connection_options

ANSWER_WITHIN = 10.0
"""How long one answer is waited for, in seconds; `?socket_timeout=` in the URL says otherwise."""
CONNECT_WITHIN = 5.0
PROVE_AFTER = 15.0
"""A connection that was idle for so many seconds has to answer a PING before it is used: the
other end may be gone.
"""
_USUAL: dict[str, Any] = {
    "socket_timeout": ANSWER_WITHIN,
    "socket_connect_timeout": CONNECT_WITHIN,
    "health_check_interval": PROVE_AFTER,
    "socket_keepalive": True,
    "max_connections": 10_000,
}
"""What the URL may say otherwise, in its query."""


def _greet(connection: Any) -> None:
    """Log in and choose the database. One that is interrupted in it is closed: answers may be
    still to come.
    """
    try:
        connection.on_connect()
    except BaseException:
        connection.disconnect()
        raise


_ALWAYS: dict[str, Any] = {
    "protocol": 2,
    "decode_responses": False,
    "retry": Retry(NoBackoff(), 0),
    "redis_connect_func": _greet,
}


class Server:
    """One server, as one process sees it. Opened by the first question; every method may be called
    from any thread.

    `place` is what differs from the URL: host and port of another node of the same Cluster.
    """

    def __init__(self, url: str, **place: Any) -> None:
        self.url = url
        pool = ConnectionPool(**{**_USUAL, **connection_options(url), **place, **_ALWAYS})
        self.options: dict[str, Any] = pool.connection_kwargs
        self._kind: Any = pool.connection_class
        self._most = pool.max_connections
        self._lines: WeakSet[Line] = WeakSet()
        self._idle: list[Line] = []
        self._lock = threading.Lock()
        self._looked = False

    @property
    def answer_within(self) -> float:
        return float(self.options["socket_timeout"])

    def check(self) -> Self:
        """ValueError or TypeError if the URL says something that no connection could be made
        with; opens nothing.
        """
        self._kind(**self.options)
        return self

    def run(self, name: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script on a key; one that the server does not know any more, because it was
        restarted, is sent again.
        """
        script = load_script(name)
        try:
            return self.ask(b"EVALSHA", script.digest, b"1", key, *arguments)
        except redis.NoScriptError:
            return self.ask(b"EVAL", script.source, b"1", key, *arguments)

    def ask(self, *words: Any) -> Any:
        """Send and wait for the answer. What the server refuses comes out as redis-py's error.

        The connection is closed unless an answer was read to its end, be it a refusal: what is
        still to come would be taken for the answer to the next question.
        """
        line = self._take()
        try:
            self._send(line, words)
            answer = self._answer(line)
        except redis.ResponseError as error:
            if is_demoted(error):
                line.close()
            self._idle.append(line)
            raise
        except AnswerLostError:
            line.close()
            self._close_idle()
            raise
        except BaseException:
            line.close()
            raise
        self._idle.append(line)
        return answer

    def connect(self) -> Any:
        """A connection of its own, for who listens; the caller closes it."""
        connection = self._kind(**self.options)
        connection.connect()
        return connection

    def close(self) -> None:
        """Also what is in use: who waits there is told at once that no answer will come."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's sockets, without a word to the
        server and without a lock.
        """
        for line in list(self._lines):
            line.abandon()

    def _close_idle(self) -> None:
        """What took one answer may have silenced the others too, and each of them would be
        waited for.
        """
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _take(self) -> Line:
        """The line that was used last, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            line = Line(self._kind(**self.options))
        with self._lock:
            if len(self._lines) >= self._most:
                raise unreachable(self.url, redis.MaxConnectionsError("Too many connections"))
            self._lines.add(line)
        return line

    def _send(self, line: Line, words: Sequence[Any]) -> None:
        """Nothing that fails here was done."""
        try:
            line.prove()
            if not self._looked:
                self._look_at_settings(line)
            line.send(words)
        except (redis.RedisError, OSError) as error:
            raise unreachable(self.url, error) from error

    def _answer(self, line: Line) -> Any:
        try:
            return line.answer()
        except redis.BusyLoadingError as error:
            raise refusal(self.url, error) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise answer_lost(self.url, error) from error

    def _look_at_settings(self, line: Line) -> None:
        """Warn once of settings that may lose messages. A server that does not tell is taken at
        its word.
        """
        self._looked = True
        try:
            line.send(("INFO",))
            told = line.answer()
        except redis.ResponseError:
            return
        facts = dict(
            line.split(":", 1) for line in told.decode(errors="replace").splitlines() if ":" in line
        )
        for fault in unsafe_settings(facts):
            warnings.warn(f"{mask_text(self.url)}: {fault}", UnsafeSettingsWarning, stacklevel=2)


def unsafe_settings(facts: dict[str, str]) -> list[str]:
    """What is wrong with the settings that INFO tells."""
    faults = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        faults.append(
            f"maxmemory-policy is {policy}, so messages may be evicted; set it to noeviction"
        )
    if facts.get("aof_enabled") == "0":
        faults.append(
            "appendonly is off, so a restart loses what came after the last snapshot; set it to yes"
        )
    return faults
