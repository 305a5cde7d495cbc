"""Whether another process listens. A hint costs the server a transaction, and wakes everybody who listens, its sender too; where
nobody else does, it is left out.

Those who listen know of each other. One that begins says `hello`; whoever hears that knows of it from then on, tells it everything,
and answers `here`. What was committed before that answer the beginner sees for himself: he looks once more when it comes. One that
ends says `bye`. Whoever is heard, with whatever, is there.

In doubt everything is told: by a process that does not listen itself, or not for long enough to have heard the answers, or that has
lost its connection. One that went without a word is noticed when nobody was heard for a while: then who is still there is asked.
"""

from __future__ import annotations

from math import inf

from longwatch.core.clock import Clock, SystemClock

SURE_AFTER = 1.0
"""Seconds in which those who are there have answered a first `hello`."""
SILENT_FOR = 60.0
"""Seconds without a word of anybody after which who is still there is asked."""
PATIENCE = 10.0
"""Seconds that those who were there are given to answer that."""


class Presence:
    """What one process knows of the others. For the thread of its ear; everybody may ask `may_be_others`."""

    def __init__(self, who: str, *, clock: Clock | None = None) -> None:
        self.hello = f"hello {who}"
        self.bye = f"bye {who}"
        self._who = who
        self._clock = clock or SystemClock()
        self._sure_at = inf
        self._asked_at = -inf
        self._until: dict[str, float] = {}

    @property
    def may_be_others(self) -> bool:
        return bool(self._until) or self._clock.monotonic() < self._sure_at

    def begin(self) -> None:
        """It listens, and has said hello."""
        self._sure_at = self._clock.monotonic() + SURE_AFTER

    def end(self) -> None:
        """It listens no more, and knows nothing."""
        self._sure_at = inf
        self._until.clear()

    def asks(self) -> bool:
        """Whether to say hello again, because nobody was heard for long; who has not answered that in time is forgotten."""
        now = self._clock.monotonic()
        for who in [who for who, until in self._until.items() if until <= now]:
            del self._until[who]
        if not self._until or max(self._until.values()) > now + PATIENCE or now < self._asked_at + PATIENCE:
            return False
        self._asked_at = now
        return True

    def hear(self, payload: str) -> tuple[str | None, bool]:
        """A word, or a hint, of anybody: what is to be answered, and whether somebody tells us everything from now on."""
        word, _, rest = payload.partition("/")[0].rpartition(" ")
        who, _, whom = rest.partition(">")
        if who == self._who or not who:
            return None, False
        if word == "bye":
            self._until.pop(who, None)
            return None, False
        self._until[who] = self._clock.monotonic() + SILENT_FOR + PATIENCE
        return (f"here {self._who}>{who}" if word == "hello" else None), word == "here" and whom == self._who
