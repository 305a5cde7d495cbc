"""Tracks which other processes listen, so that NOTIFY is skipped while there are none.

A NOTIFY costs the server a transaction and wakes every listener, including that of its sender.

Listeners know of each other. A listener that starts sends `hello`. Every peer that receives it
records the sender, notifies it from then on, and replies `here`. The new listener missed the
commits before that reply, so it wakes every subscription when the reply arrives. A listener that
stops sends `bye`. Any payload of a peer shows that it listens. If the peer was unknown, it gets
`here` as well. It may have missed notifications, because its reply came late or because it had been
dropped.

In doubt a process notifies: while it does not listen itself, while it has not listened long enough
to get the replies, and after it lost its connection. When a peer has been silent for a while, the
listener sends another `hello`. All listeners receive the replies to it. A peer that does not reply
in time is dropped. A peer that appeared after the `hello` is not.
"""

from __future__ import annotations

import re
from math import inf

from longwatch.core.clock import Clock, SystemClock

DISCOVERY_SECONDS = 1.0
"""Seconds within which peers have replied to a first `hello`."""
PING_AFTER = 60.0
"""Seconds of silence of a peer after which the listener sends `hello` again."""
PING_TIMEOUT = 10.0
"""Seconds that peers have to reply."""
MAX_PEERS = 1000
"""The most peers to remember, so that payloads of strangers cannot exhaust the memory."""

_HINT = "hint"
_VERBS = frozenset({_HINT, "hello", "here", "bye"})
_PEER_ID = re.compile(r"[0-9a-f]{12}")


class ListenerPresence:
    """The peers that one process knows. For the listener thread; any thread may read
    `may_have_peers`.
    """

    def __init__(self, client_id: str, *, clock: Clock | None = None) -> None:
        self.hello = f"hello {client_id}"
        self.bye = f"bye {client_id}"
        self._client_id = client_id
        self._clock = clock or SystemClock()
        self._discovered_at = inf
        self._pinged_at: float | None = None
        self._last_seen: dict[str, float] = {}

    @property
    def may_have_peers(self) -> bool:
        return bool(self._last_seen) or self._clock.monotonic() < self._discovered_at

    def start(self) -> None:
        """Record that this process listens and has sent its `hello`."""
        self._discovered_at = self._clock.monotonic() + DISCOVERY_SECONDS

    def stop(self) -> None:
        """Record that this process no longer listens, and forget all peers."""
        self._discovered_at = inf
        self._pinged_at = None
        self._last_seen.clear()

    def should_ping(self) -> bool:
        """Return whether to send `hello` again because a peer has been silent for long. Drops peers
        that did not reply to the last one.
        """
        now = self._clock.monotonic()
        if self._pinged_at is not None:
            if now < self._pinged_at + PING_TIMEOUT:
                return False
            self._last_seen = {
                peer: at for peer, at in self._last_seen.items() if at >= self._pinged_at
            }
            self._pinged_at = None
        if all(at > now - PING_AFTER for at in self._last_seen.values()):
            return False
        self._pinged_at = now
        return True

    def receive(self, payload: str) -> tuple[str | None, bool]:
        """Handle one payload, a control message or a notification.

        Returns the reply to send, if any, and whether a peer has just announced that it notifies
        this process from now on.
        """
        head, is_hint, _ = payload.partition("/")
        verb, _, rest = (_HINT, "", head) if is_hint else head.rpartition(" ")
        peer, _, addressee = rest.partition(">")
        is_known = peer in self._last_seen
        if (
            verb not in _VERBS
            or peer == self._client_id
            or not _PEER_ID.fullmatch(peer)
            or (len(self._last_seen) >= MAX_PEERS and not is_known)
        ):
            return None, False
        if verb == "bye":
            self._last_seen.pop(peer, None)
            return None, False
        now = self._last_seen[peer] = self._clock.monotonic()
        if (
            verb == "hello" and self._pinged_at is None
        ):  # every peer replies, and this listener receives that
            self._pinged_at = now
        is_answered = verb == "hello" or not is_known
        return (
            f"here {self._client_id}>{peer}" if is_answered else None
        ), verb == "here" and addressee == self._client_id
