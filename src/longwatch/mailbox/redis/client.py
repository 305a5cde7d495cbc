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
from longwatch.mailbox.redis.errors import ResponseLostError, read_error, refused_error
from longwatch.mailbox.redis.transport import RedisNode
from longwatch.store.database import CALL_TIMEOUT

RETRY_BACKOFF = BackoffPolicy(initial=0.05, factor=2.0, cap=2.0, jitter=0.25)
_MAX_REDIRECTS = 5


class RetryMode(Enum):
    """What to do when an answer was lost."""

    NEVER = (
        auto()
    )  # whether it was done is unknown, and doing it twice is not the same: the caller has to know
    ONCE = auto()  # doing it twice is the same: a connection that had died is no reason to fail
    UNTIL_KNOWN = (
        auto()
    )  # the server knows it again, so it is asked until it answers, or the deadline comes


class RedisClient:
    """Calls of one process to one server, or to the nodes of one Cluster. Every method may be
    called from any thread.

    All keys of a mailbox are on one node, so a node that says that a mailbox has moved is believed,
    and asked no more.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._default_node = RedisNode(url)
        self._nodes: dict[tuple[str, int], RedisNode] = {}
        self._node_by_key: dict[str, RedisNode] = {}
        self._clock = SystemClock()
        self.connect = self._default_node.connect

    def run_script(self, name: str, key: str, arguments: Sequence[Any], *, retry: RetryMode) -> Any:
        """Run a script on a mailbox."""
        return self._call_with_retry(retry, key, RedisNode.run_script, name, key, arguments)

    def read(self, command: str, key: str, suffix: str = "", *arguments: Any) -> Any:
        """Run a plain command that only reads, on a part of a mailbox."""
        return self._call_with_retry(
            RetryMode.ONCE, key, RedisNode.execute, command, key + suffix, *arguments
        )

    def close(self) -> None:
        for node in (self._default_node, *self._nodes.values()):
            node.close()

    def close_after_fork(self) -> None:
        """In a forked child: close its copies of the parent's sockets."""
        for node in (self._default_node, *self._nodes.values()):
            node.close_after_fork()

    def _call_node(self, key: str, send: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Ask the server that has this mailbox."""
        for _ in range(_MAX_REDIRECTS):
            try:
                return send(self._node_by_key.get(key, self._default_node), *arguments)
            except redis.MovedError as moved:
                self._node_by_key[key] = self._node(moved.host, moved.port)
            except (ResponseLostError, StoreUnreachableError):
                self._node_by_key.pop(key, None)
                raise
            except redis.RedisError as error:
                raise refused_error(self._url, error) from error
        raise StoreBusyError(
            f"{key} has moved {_MAX_REDIRECTS} times; nothing was written, try again"
        )

    def _node(self, host: str, port: int) -> RedisNode:
        """Nodes are few, and stay."""
        return self._nodes.setdefault((host, port), RedisNode(self._url, host=host, port=port))

    def _call_with_retry(
        self, retry: RetryMode, key: str, send: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Ask, and if the answer is lost, ask again as far as that is allowed and there is time."""
        began = time.monotonic()
        try:
            return self._call_node(key, send, arguments)
        except ResponseLostError as lost:
            until = began + CALL_TIMEOUT - self._default_node.response_timeout
            return self._retry(
                lambda: self._call_node(key, send, arguments), retry, lost, until=until
            )

    def _retry(
        self, send: Callable[[], Any], retry: RetryMode, lost: ResponseLostError, *, until: float
    ) -> Any:
        backoff = Backoff(RETRY_BACKOFF)
        while True:
            wait = backoff.failed(lasted=0.0)
            if _should_give_up(retry, backoff.failures) or time.monotonic() + wait > until:
                raise _lost_error(lost, retry) from lost.__cause__
            self._clock.wait(Wakeup(), wait)
            try:
                return send()
            except ResponseLostError as error:
                lost = error
            except (StoreBusyError, StoreUnreachableError):
                continue


def pack_arguments(arguments: dict[str, Any]) -> bytes:
    """What a script is asked, as `lua/keys.lua` reads it."""
    return msgspec.msgpack.encode(arguments)


def _should_give_up(retry: RetryMode, tries: int) -> bool:
    return retry is RetryMode.NEVER or (retry is RetryMode.ONCE and tries > 1)


def _lost_error(lost: ResponseLostError, retry: RetryMode) -> StoreError:
    return read_error(lost) if retry is RetryMode.ONCE else lost
