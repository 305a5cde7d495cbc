"""Calls the node that has a mailbox, under a deadline, and retries where a retry is safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import msgspec
from redis import exceptions as redis

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreBusyError, StoreError, StoreUnreachableError
from longwatch.mailbox.redis.errors import (
    ResponseLostError,
    SlotMovingError,
    read_error,
    refused_error,
)
from longwatch.mailbox.redis.transport import RedisNode
from longwatch.store.database import CALL_TIMEOUT
from longwatch.store.retry import retry

RETRY_BACKOFF = BackoffPolicy(initial=0.05, factor=2.0, cap=2.0, jitter=0.25)
SLOT_MOVE_TIMEOUT = 5.0
"""Seconds for which a call waits while its mailbox moves to another node of a Cluster."""
_MAX_REDIRECTS = 5
_RETRYABLE = (ResponseLostError, StoreBusyError, StoreUnreachableError)


class RetryMode(Enum):
    """Whether a call is sent again after its reply was lost."""

    NEVER = auto()  # not idempotent: raise an error that says the result is unknown
    ONCE = auto()  # idempotent: one retry covers a connection that was dead already
    UNTIL_KNOWN = auto()  # the server recognises the request: retry until it replies


class RedisClient:
    """The calls of one process to one server, or to the nodes of one Cluster. Thread-safe.

    All keys of a mailbox are on one node. After a MOVED reply, calls for that mailbox go to the new
    node. When a node fails, the other nodes of the Cluster say which one took its place.

    While a slot moves, some of its keys are on either node, so no script can work: calls wait for
    the end of the move. An ASK reply is not followed, because a script on the new node would see a
    mailbox without the keys that are still to come.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._default_node = RedisNode(url)
        self._nodes: dict[tuple[str, int], RedisNode] = {}
        self._node_by_key: dict[str, RedisNode] = {}
        self._clock = SystemClock()

    def run_script(self, name: str, key: str, arguments: Sequence[Any], *, retry: RetryMode) -> Any:
        """Run a script on a mailbox."""
        return self._call_with_retry(retry, key, RedisNode.run_script, name, key, arguments)

    def read(self, command: str, key: str, suffix: str = "", *arguments: Any) -> Any:
        """Run a read-only command on one key of a mailbox."""
        return self._call_with_retry(
            RetryMode.ONCE, key, RedisNode.execute, command, key + suffix, *arguments
        )

    def connect(self) -> Any:
        """Open a separate connection for a listener. If the node in the URL cannot be reached, take
        another known node: each node of a Cluster receives all notifications.
        """
        try:
            return self._default_node.connect()
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            self._add_listed_nodes()
            for node in self._nodes.copy().values():
                with suppress(redis.RedisError, OSError):
                    return node.connect()
            raise

    def close(self) -> None:
        for node in self._known_nodes():
            node.close()

    def close_after_fork(self) -> None:
        """In a forked child: close its copies of the parent's sockets."""
        for node in self._known_nodes():
            node.close_after_fork()

    def _call_node(self, key: str, send: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call the node that has this mailbox, and follow MOVED replies. If the node cannot be
        reached, ask another known node which one has the mailbox now.
        """
        failed: dict[RedisNode, StoreUnreachableError] = {}
        node = self._node_by_key.get(key, self._default_node)
        for _ in range(_MAX_REDIRECTS):
            try:
                return send(node, *arguments)
            except redis.MovedError as moved:
                node = self._node_by_key[key] = self._node(moved.host, moved.port)
                if node in failed:  # no replica has taken its place yet
                    self._node_by_key.pop(key, None)
                    raise failed[node] from None
            except ResponseLostError:
                self._node_by_key.pop(key, None)
                raise
            except StoreUnreachableError as error:
                failed[node] = error
                self._add_listed_nodes()
                others = [each for each in self._known_nodes() if each not in failed]
                if not others or len(failed) == _MAX_REDIRECTS:
                    self._node_by_key.pop(key, None)
                    raise
                node = self._node_by_key[key] = others[0]
            except redis.RedisError as error:
                raise refused_error(self._url, error) from error
        raise StoreBusyError(
            f"{key} has moved {_MAX_REDIRECTS} times; nothing was written, try again"
        )

    def _known_nodes(self) -> list[RedisNode]:
        return [self._default_node, *self._nodes.copy().values()]

    def _add_listed_nodes(self) -> None:
        """Add the nodes that others have listed. They are called only when a node fails."""
        for node in self._known_nodes():
            for host, port in node.cluster:
                self._node(host, port)

    def _node(self, host: str, port: int) -> RedisNode:
        """Return the node at an address. Nodes are few, so they are never removed."""
        options = self._default_node.options
        if (host, port) == (options.get("host"), options.get("port")):
            return self._default_node
        return self._nodes.get((host, port)) or self._nodes.setdefault(
            (host, port), RedisNode(self._url, host=host, port=port)
        )

    def _call_with_retry(
        self, mode: RetryMode, key: str, send: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call, and if the reply is lost, retry as far as the mode and the deadline allow. Wait
        while the mailbox moves to another node.
        """
        began = self._clock.monotonic()
        try:
            return self._call_node(key, send, arguments)
        except SlotMovingError as error:
            first: StoreError = error
            last_start = began + SLOT_MOVE_TIMEOUT
        except ResponseLostError as error:
            first = error
            last_start = began + CALL_TIMEOUT - self._default_node.response_timeout
        deadline = Deadline(last_start, self._clock)
        return self._retry(lambda: self._call_node(key, send, arguments), mode, first, deadline)

    def _retry(
        self, send: Callable[[], Any], mode: RetryMode, first: StoreError, deadline: Deadline
    ) -> Any:
        """Retry after an error. If a reply was lost and the retry is refused or cannot be sent,
        raise the error of the lost reply, because that call may have been done.
        """
        failures = 0
        lost: ResponseLostError | None = None

        def should_retry(error: Exception) -> bool:
            nonlocal lost, failures
            if isinstance(error, ResponseLostError):
                lost = error
            if lost is None:
                return isinstance(error, SlotMovingError)
            failures += 1
            return isinstance(error, _RETRYABLE) and _allows_retry(mode, failures)

        try:
            return retry(
                send,
                policy=RETRY_BACKOFF,
                deadline=deadline,
                should_retry=should_retry,
                pause=lambda delay: self._clock.wait(Wakeup(), delay),
                error=first,
            )
        except _RETRYABLE:
            if lost is None:
                raise
            raise _lost_error(lost, mode) from lost.__cause__


def pack_arguments(arguments: dict[str, Any]) -> bytes:
    """Encode the arguments of a script in the form that `lua/keys.lua` reads."""
    return msgspec.msgpack.encode(arguments)


def _allows_retry(mode: RetryMode, failures: int) -> bool:
    return mode is RetryMode.UNTIL_KNOWN or (mode is RetryMode.ONCE and failures == 1)


def _lost_error(lost: ResponseLostError, mode: RetryMode) -> StoreError:
    return read_error(lost) if mode is RetryMode.ONCE else lost
