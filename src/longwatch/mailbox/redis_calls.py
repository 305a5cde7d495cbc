"""Calls about mailboxes: to the server that has them, under a deadline, and again where that is
safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import msgspec
from redis import exceptions as redis

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.errors import StoreBusyError, StoreError, StoreUnreachableError
from longwatch.mailbox.redis_connection import Server
from longwatch.mailbox.redis_errors import AnswerLostError, read_failed, refusal
from longwatch.store.database import CALL_TIMEOUT

RETRY = BackoffPolicy(initial=0.05, factor=2.0, cap=2.0, jitter=0.25)
_MOST_MOVES = 5


class Again(Enum):
    """What to do when an answer was lost."""

    NEVER = (
        auto()
    )  # whether it was done is unknown, and doing it twice is not the same: the caller has to know
    ONCE = auto()  # doing it twice is the same: a connection that had died is no reason to fail
    UNTIL_KNOWN = (
        auto()
    )  # the server knows it again, so it is asked until it answers, or the deadline comes


class Calls:
    """Calls of one process to one server, or to the nodes of one Cluster. Every method may be
    called from any thread.

    All keys of a mailbox are on one node, so a node that says that a mailbox has moved is believed,
    and asked no more.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._first = Server(url)
        self._nodes: dict[tuple[str, int], Server] = {}
        self._homes: dict[str, Server] = {}
        self._clock = SystemClock()
        self.connect = self._first.connect

    def script(self, name: str, key: str, arguments: Sequence[Any], *, again: Again) -> Any:
        """Run a script on a mailbox."""
        return self._insist(again, key, Server.run, name, key, arguments)

    def read(self, command: str, key: str, part: str = "", *arguments: Any) -> Any:
        """Run a plain command that only reads, on a part of a mailbox."""
        return self._insist(Again.ONCE, key, Server.ask, command, key + part, *arguments)

    def close(self) -> None:
        for server in (self._first, *self._nodes.values()):
            server.close()

    def abandon(self) -> None:
        """In a forked child: close its copies of the parent's sockets."""
        for server in (self._first, *self._nodes.values()):
            server.abandon()

    def _at(self, key: str, ask: Callable[..., Any], words: Sequence[Any]) -> Any:
        """Ask the server that has this mailbox."""
        for _ in range(_MOST_MOVES):
            try:
                return ask(self._homes.get(key, self._first), *words)
            except redis.MovedError as moved:
                self._homes[key] = self._node(moved.host, moved.port)
            except (AnswerLostError, StoreUnreachableError):
                self._homes.pop(key, None)
                raise
            except redis.RedisError as error:
                raise refusal(self._url, error) from error
        raise StoreBusyError(f"{key} has moved {_MOST_MOVES} times; nothing was written, try again")

    def _node(self, host: str, port: int) -> Server:
        """Nodes are few, and stay."""
        return self._nodes.setdefault((host, port), Server(self._url, host=host, port=port))

    def _insist(self, again: Again, key: str, ask: Callable[..., Any], *words: Any) -> Any:
        """Ask, and if the answer is lost, ask again as far as that is allowed and there is time."""
        began = time.monotonic()
        try:
            return self._at(key, ask, words)
        except AnswerLostError as lost:
            until = began + CALL_TIMEOUT - self._first.answer_within
            return self._ask_again(lambda: self._at(key, ask, words), again, lost, until=until)

    def _ask_again(
        self, ask: Callable[[], Any], again: Again, lost: AnswerLostError, *, until: float
    ) -> Any:
        backoff = Backoff(RETRY)
        while True:
            wait = backoff.failed(lasted=0.0)
            if _is_enough(again, backoff.failures) or time.monotonic() + wait > until:
                raise _verdict(lost, again) from lost.__cause__
            self._clock.wait(Wakeup(), wait)
            try:
                return ask()
            except AnswerLostError as error:
                lost = error
            except (StoreBusyError, StoreUnreachableError):
                continue


def packed(asked: dict[str, Any]) -> bytes:
    """What a script is asked, as `lua/keys.lua` reads it."""
    return msgspec.msgpack.encode(asked)


def _is_enough(again: Again, tries: int) -> bool:
    return again is Again.NEVER or (again is Again.ONCE and tries > 1)


def _verdict(lost: AnswerLostError, again: Again) -> StoreError:
    return read_failed(lost) if again is Again.ONCE else lost
