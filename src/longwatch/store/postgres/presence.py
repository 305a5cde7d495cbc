"""Whether another process listens. A hint costs the server a transaction, and wakes everybody who
listens, its sender too; where nobody else does, it is left out.

Those who listen know of each other. One that begins says `hello`; whoever hears that knows of it
from then on, tells it everything, and answers `here`. What was committed before that answer the
beginner sees for himself: he looks once more when it comes. One that ends says `bye`. Whoever is
heard, with whatever, is there; if he was not known, he is told `here` as well, for he may have been
left out until now: his answer came late, or he had been given up.

In doubt everything is told: by a process that does not listen itself, or not for long enough to
have heard the answers, or that has lost its connection. When somebody was not heard for a while,
everybody is asked with another `hello`, whose answers all of them hear; who has not answered after
a while is given up, and nobody who was not asked.
"""

from __future__ import annotations

import re
from math import inf

from longwatch.core.clock import Clock, SystemClock

DISCOVERY_SECONDS = 1.0
"""Seconds in which those who are there have answered a first `hello`."""
PING_AFTER = 60.0
"""Seconds without a word of somebody after which who is still there is asked."""
PING_TIMEOUT = 10.0
"""Seconds that they are given to answer."""
MAX_PEERS = 1000
"""Of others to know by name: what strangers say on the channel is to fill nothing up."""

_HINT = "hint"
_VERBS = frozenset({_HINT, "hello", "here", "bye"})
_PEER_ID = re.compile(r"[0-9a-f]{12}")


class ListenerPresence:
    """What one process knows of the others. For the listener thread; any thread may call
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
        """It listens, and has said hello."""
        self._discovered_at = self._clock.monotonic() + DISCOVERY_SECONDS

    def stop(self) -> None:
        """It listens no more, and knows nothing."""
        self._discovered_at = inf
        self._pinged_at = None
        self._last_seen.clear()

    def should_ping(self) -> bool:
        """Whether to say hello again, because somebody was not heard for long. Who has not
        answered the last one is given up.
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
        """A word, or a hint, of anybody: what is to be answered, and whether somebody tells us
        everything from now on.
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
        if verb == "hello" and self._pinged_at is None:  # all of them answer, and we hear that
            self._pinged_at = now
        is_answered = verb == "hello" or not is_known
        return (
            f"here {self._client_id}>{peer}" if is_answered else None
        ), verb == "here" and addressee == self._client_id
