"""What user code is told about the row it works on, and what it can say."""

from __future__ import annotations

import threading

from longwatch.core.cancel import CancelToken
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.heartbeat import Heartbeat
from longwatch.host.beatpage import BeatPage
from longwatch.work.source import Leased, Settlement


class Pulse:
    """The sign of life of one slot: its heartbeat and its place on the beat page, which is
    readable from outside.
    """

    __slots__ = ("_monotonic", "_page", "_slot", "heartbeat", "making")

    def __init__(self, clock: Clock, page: BeatPage, slot: int) -> None:
        self.heartbeat = Heartbeat(clock)
        self.making = threading.Lock()
        self._monotonic = clock.monotonic
        self._page = page
        self._slot = slot

    def beat(self, progress: object = None) -> None:
        self.heartbeat.beat(progress)
        self._page.beat(self._slot, self._monotonic())

    def begin(self, row: int, now: float) -> None:
        """From here on this row is to blame if the process dies."""
        self.heartbeat.beat()
        self._page.begin(self._slot, row, now)

    def end(self) -> None:
        """From here on no row is."""
        self._page.end(self._slot)


class WorkContext:
    """The context of one run of one row.

    `cancelled` and `lease_lost` are for code that looks up now and then: the first says stop, the
    second says that whatever it does will not count. `settled`: the row was settled while the code
    ran, there is no lease any more that could be lost. `ruling`: it is decided how the row is
    settled, whatever the code says in the end.
    """

    __slots__ = (
        "_making",
        "_pulse",
        "_token",
        "began",
        "deadline",
        "lease_lost",
        "leased",
        "ruling",
        "settled",
    )

    def __init__(self, leased: Leased, pulse: Pulse, deadline: Deadline, *, began: float) -> None:
        self.leased = leased
        self.deadline = deadline
        self.began = began
        self.lease_lost = False
        self.settled = False
        self.ruling: Settlement | None = None
        self._making = pulse.making
        self._pulse: Pulse | None = pulse
        self._token: CancelToken | None = None

    def beat(self, progress: object = None) -> None:
        """Say that the work is alive, and how far it is."""
        if (pulse := self._pulse) is not None:
            pulse.beat(progress)

    @property
    def attempt(self) -> int:
        """1 for the first delivery of the row."""
        return self.leased.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every delivery of the row; give it to systems that can refuse a smaller
        one.
        """
        return self.leased.claim.term

    @property
    def cancel(self) -> CancelToken:
        """What to wait for, or to pass on, to be stopped in time. Made when it is first asked
        for: most rows need none.
        """
        if self._token is None:
            with self._making:
                if self._token is None:
                    self._token = CancelToken()
        return self._token

    @property
    def cancelled(self) -> bool:
        return self._token is not None and self._token.cancelled

    def lose_lease(self) -> None:
        """The right to this row is gone: stop, nothing more counts."""
        self.lease_lost = True
        self.cancel.cancel("lease_lost")

    def close(self) -> None:
        """The run is over; a beat from a thread that was left behind is nobody's sign of life."""
        self._pulse = None
