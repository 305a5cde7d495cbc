"""The connections of one process to one Redis server: one question, one answer, and what is known when none comes.

A question fails in one of three ways. It could not be sent, or the server refused it: nothing was done. Or it was sent and no
answer came: then nobody knows. redis-py's own retries are off, because they would repeat what must not be repeated.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from redis import exceptions as redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from longwatch.core.masking import mask_text
from longwatch.errors import UnsafeSettingsWarning
from longwatch.mailbox.redis_errors import answer_lost, is_demoted, refusal, unreachable
from longwatch.mailbox.redis_scripts import load_script
from longwatch.mailbox.redis_url import connection_options

ANSWER_WITHIN = 10.0
"""How long one answer is waited for, in seconds; `?socket_timeout=` in the URL says otherwise."""
CONNECT_WITHIN = 5.0
PROVE_AFTER = 15.0
"""A connection that was idle for so many seconds has to answer a PING before it is used: the other end may be gone."""
_USUAL: dict[str, Any] = {
    "socket_timeout": ANSWER_WITHIN,
    "socket_connect_timeout": CONNECT_WITHIN,
    "health_check_interval": PROVE_AFTER,
    "socket_keepalive": True,
    "max_connections": 10_000,
}
"""What the URL may say otherwise, in its query."""


def _greet(connection: Any) -> None:
    """Log in and choose the database. One that is interrupted in it is closed: answers may be still to come."""
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
    """One server, as one process sees it. Opened by the first question; every method may be called from any thread.

    `place` is what differs from the URL: host and port of another node of the same Cluster.
    """

    def __init__(self, url: str, **place: Any) -> None:
        self.url = url
        self.pool = ConnectionPool(**{**_USUAL, **connection_options(url), **place, **_ALWAYS})
        self._looked = False

    @property
    def answer_within(self) -> float:
        return float(self.pool.connection_kwargs["socket_timeout"])

    def check(self) -> Self:
        """ValueError or TypeError if the URL says something that no connection could be made with; opens nothing."""
        self.pool.connection_class(**self.pool.connection_kwargs)
        return self

    def run(self, name: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script on a key; one that the server does not know any more, because it was restarted, is sent again."""
        script = load_script(name)
        try:
            return self.ask("EVALSHA", script.digest, 1, key, *arguments)
        except redis.NoScriptError:
            return self.ask("EVAL", script.source, 1, key, *arguments)

    def ask(self, *words: Any) -> Any:
        """Send and wait for the answer. What the server refuses comes out as redis-py's error."""
        with self._connection() as connection:
            try:
                connection.send_command(*words, check_health=False)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                raise unreachable(self.url, error) from error
            try:
                return connection.read_response()
            except redis.BusyLoadingError as error:
                raise refusal(self.url, error) from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                raise answer_lost(self.url, error) from error
            except redis.ResponseError as error:
                if is_demoted(error):
                    connection.disconnect()
                raise

    def connect(self) -> Any:
        """A connection of its own, for who listens; the caller closes it."""
        connection: Any = self.pool.connection_class(**self.pool.connection_kwargs)
        connection.connect()
        return connection

    def close(self) -> None:
        self.pool.disconnect()

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's sockets, without a word to the server and without a lock."""
        for connection in (*self.pool._available_connections, *self.pool._in_use_connections):  # noqa: SLF001 - see above
            abandon(connection)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection that answers.

        It is closed unless an answer was read to its end, be it a refusal: what is still to come would be taken for the answer to
        the next question. One whose closing is interrupted too is not used again.
        """
        connection = self._taken()
        try:
            self._prove(connection)
            yield connection
        except redis.ResponseError:
            self.pool.release(connection)
            raise
        except BaseException:
            connection.disconnect()
            self.pool.release(connection)
            raise
        else:
            self.pool.release(connection)

    def _taken(self) -> Any:
        """Out of the pool; one that was interrupted while it connected is back in it, and must not stay open."""
        try:
            return self.pool.get_connection()
        except (redis.RedisError, OSError) as error:
            raise unreachable(self.url, error) from error
        except BaseException:
            self.pool.disconnect(inuse_connections=False)
            raise

    def _prove(self, connection: Any) -> None:
        """Have an idle connection answer first; one that does not is made anew."""
        try:
            try:
                connection.check_health()
            except (redis.ConnectionError, redis.TimeoutError):
                connection.disconnect()
                connection.connect()
            if not self._looked:
                self._look_at_settings(connection)
        except (redis.RedisError, OSError) as error:
            raise unreachable(self.url, error) from error

    def _look_at_settings(self, connection: Any) -> None:
        """Warn once of settings that may lose messages. A server that does not tell is taken at its word."""
        self._looked = True
        try:
            connection.send_command("INFO", check_health=False)
            told = connection.read_response()
        except redis.ResponseError:
            return
        facts = dict(line.split(":", 1) for line in told.decode(errors="replace").splitlines() if ":" in line)
        for fault in unsafe_settings(facts):
            warnings.warn(f"{mask_text(self.url)}: {fault}", UnsafeSettingsWarning, stacklevel=2)


def abandon(connection: Any) -> None:
    """Close a copy of another process's socket: the connection itself goes on there."""
    if connection._sock is not None:  # noqa: SLF001 - redis-py closes it only under locks that the fork may have found taken
        connection._sock.close()  # noqa: SLF001


def unsafe_settings(facts: dict[str, str]) -> list[str]:
    """What is wrong with the settings that INFO tells."""
    faults = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        faults.append(f"maxmemory-policy is {policy}, so messages may be evicted; set it to noeviction")
    if facts.get("aof_enabled") == "0":
        faults.append("appendonly is off, so a restart loses what came after the last snapshot; set it to yes")
    return faults
