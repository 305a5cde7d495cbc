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

SURE_AFTER = 1.0
"""Seconds in which those who are there have answered a first `hello`."""
SILENT_FOR = 60.0
"""Seconds without a word of somebody after which who is still there is asked."""
PATIENCE = 10.0
"""Seconds that they are given to answer."""
MOST = 1000
"""Of others to know by name: what strangers say on the channel is to fill nothing up."""

_HINT = "hint"
_WORDS = frozenset({_HINT, "hello", "here", "bye"})
_NAME = re.compile(r"[0-9a-f]{12}")


class Presence:
    """What one process knows of the others. For the thread of its ear; everybody may ask
    `may_be_others`.
    """

    def __init__(self, who: str, *, clock: Clock | None = None) -> None:
        self.hello = f"hello {who}"
        self.bye = f"bye {who}"
        self._who = who
        self._clock = clock or SystemClock()
        self._sure_at = inf
        self._asked_at: float | None = None
        self._heard: dict[str, float] = {}

    @property
    def may_be_others(self) -> bool:
        return bool(self._heard) or self._clock.monotonic() < self._sure_at

    def begin(self) -> None:
        """It listens, and has said hello."""
        self._sure_at = self._clock.monotonic() + SURE_AFTER

    def end(self) -> None:
        """It listens no more, and knows nothing."""
        self._sure_at = inf
        self._asked_at = None
        self._heard.clear()

    def asks(self) -> bool:
        """Whether to say hello again, because somebody was not heard for long. Who has not
        answered the last one is given up.
        """
        now = self._clock.monotonic()
        if self._asked_at is not None:
            if now < self._asked_at + PATIENCE:
                return False
            self._heard = {who: at for who, at in self._heard.items() if at >= self._asked_at}
            self._asked_at = None
        if all(at > now - SILENT_FOR for at in self._heard.values()):
            return False
        self._asked_at = now
        return True

    def hear(self, payload: str) -> tuple[str | None, bool]:
        """A word, or a hint, of anybody: what is to be answered, and whether somebody tells us
        everything from now on.
        """
        said, is_hint, _ = payload.partition("/")
        word, _, rest = (_HINT, "", said) if is_hint else said.rpartition(" ")
        who, _, whom = rest.partition(">")
        is_known = who in self._heard
        if (
            word not in _WORDS
            or who == self._who
            or not _NAME.fullmatch(who)
            or (len(self._heard) >= MOST and not is_known)
        ):
            return None, False
        if word == "bye":
            self._heard.pop(who, None)
            return None, False
        now = self._heard[who] = self._clock.monotonic()
        if word == "hello" and self._asked_at is None:  # all of them answer, and we hear that
            self._asked_at = now
        is_answered = word == "hello" or not is_known
        return (
            f"here {self._who}>{who}" if is_answered else None
        ), word == "here" and whom == self._who
