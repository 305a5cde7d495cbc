"""The wakeup of an engine: decides which hints of other processes an idle engine answers.

A message that another process sends is hinted to every process that listens. If every idle engine
answered, a message would cost as many claims as there are engines, and one claim finds the row. The
engines do not know of each other. So each answers a hint with a probability p of its own:

    the claim after a hint finds rows               p doubles, up to 1
    three such claims in a row find none            p halves, down to 1/256

p starts at 1, so a lone engine answers every hint. With many idle engines p sinks until about four
of them answer a hint, however many there are. Halving after each miss would let 5 to 14 % of the
messages wait. After three, it is below 1 % (`tests/unit/test_hint_gate.py` simulates this). Only an
engine that has found no row since its start halves p after each miss, down to 1/64, so that a fleet
that has just started adapts within some messages. A message whose hint no engine answers is found
by the engine that has the sweep turn of the queue (`store.sweep_turns`): it looks once a second,
and notifies again. From the second time on it asks every engine, so a message waits for about two
seconds at most while any engine is idle.

Only `hint()` is decided here. `set()` always wakes: this process itself has made work, every engine
is asked, or the listener has missed notifications. `poll()` does not wake, because the engine polls
by itself, more rarely than the listener. `wake_for_audit()` wakes without a reason to claim.

Where the store is used by one machine only, a claim that finds nothing is a cheap read. Then every
hint and every poll wakes.
"""

from __future__ import annotations

from longwatch.core.clock import Wakeup
from longwatch.core.jitter import random_fraction
from longwatch.host.periodic import RandomFraction

MIN_PROBABILITY = 1 / 256
MISSES_TO_HALVE = 3
MIN_FIRST_PROBABILITY = 1 / 64
"""Down to this, each miss of an engine that has found no row yet halves its probability."""


class HintGate(Wakeup):
    """A wakeup that answers some of the hints. `is_shared`: many machines may use the store.

    `hint` and `poll` are called by the listener, `record_claim` by the thread that claims. Both
    write only what the other may read late.
    """

    __slots__ = (
        "_fraction",
        "_has_answered",
        "_has_found",
        "_has_news",
        "_is_shared",
        "_misses",
        "probability",
    )

    def __init__(self, *, is_shared: bool, fraction: RandomFraction = random_fraction) -> None:
        super().__init__()
        self.probability = 1.0
        self._is_shared = is_shared
        self._fraction = fraction
        self._has_answered = False
        self._has_found = False
        self._has_news = False
        self._misses = 0

    def set(self) -> None:
        self._has_news = True
        super().set()

    def wake_for_audit(self) -> None:
        """Set the flag without a reason to claim rows."""
        super().set()

    def take_news(self) -> bool:
        """Return whether it was set since the last call because rows may wait."""
        has_news, self._has_news = self._has_news, False
        return has_news

    def hint(self) -> None:
        if self._is_shared and self._fraction() >= self.probability:
            return
        self._has_answered = True
        self.set()

    def poll(self) -> None:
        if not self._is_shared:
            self.set()

    def record_claim(self, *, has_found: bool) -> None:
        """Adapt the probability after a claim. A claim that found nothing counts only if it
        answered a hint.
        """
        if has_found:
            self.probability = min(2 * self.probability, 1.0)
            self._has_found = True
            self._misses = 0
        elif self._has_answered:
            self._record_miss()
        self._has_answered = False

    def _record_miss(self) -> None:
        self._misses += 1
        is_first = not self._has_found and self.probability > MIN_FIRST_PROBABILITY
        if is_first or self._misses >= MISSES_TO_HALVE:
            self.probability = max(self.probability / 2, MIN_PROBABILITY)
            self._misses = 0
