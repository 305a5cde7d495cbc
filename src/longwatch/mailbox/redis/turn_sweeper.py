"""Sweeps one mailbox in Redis for one engine, by turns.

    turn of the mailbox   dead owners, ended leases, due and expired messages, and messages that
                          wait: all that one look reads (`lua/find_stale.lua`)
    lock of this host     dead owners that this host sees

`store.sweep_turns` describes the turns, `store.host_owners` the lock. An engine that has neither
makes no call to the server, except to delete old dead letters (`mailbox.dead_retention`). The
owners are many and rarely change. So a look reads them only if a lease has ended, and from time to
time. The engine with the lock of a host reads them when one was registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.engine.claim_source import GivenUp, SweepRound
from longwatch.host.background_thread import BackgroundThread
from longwatch.mailbox.dead_retention import DeadRetention
from longwatch.mailbox.redis.client import RetryMode
from longwatch.mailbox.redis.sweep import Look, Reads, RedisSweeper, has_ended
from longwatch.store.claims import RowSelection
from longwatch.store.host_owners import HostOwners
from longwatch.store.sweep import SWEEP_BATCH
from longwatch.store.sweep_turns import RELEASE_TIMEOUT, StoredTurn, SweepTurns, WaitingQueues

LOOK_INTERVAL = 1.0
"""Seconds between two looks of the engine that has the turn."""
_QUEUE = "queue"
"""The only queue of the sweeper."""
OWNERS_INTERVAL = 10.0
"""Seconds between two looks that read all owners."""


class RunsScripts(Protocol):
    """The part of a mailbox backend that keeps turns."""

    def run_script(self, script: str, *, retry: RetryMode = ..., **arguments: Any) -> Any: ...


class RedisTurnStorage:
    """The turn of one mailbox, in the hash of the mailbox. The server's clock decides."""

    def __init__(self, mailbox: RunsScripts) -> None:
        self._mailbox = mailbox

    def find(self, names: Sequence[str]) -> dict[str, StoredTurn]:
        holder, left = self._mailbox.run_script("find_turn")
        return dict.fromkeys(names, StoredTurn(holder.decode(), float(left)))

    def take(
        self, names: Sequence[str], *, holder: str, ended: Sequence[str], seconds: float
    ) -> set[str]:
        is_taken = self._mailbox.run_script(
            "take_turn", holder=holder, ended=ended, seconds=seconds
        )
        return set(names) if is_taken else set()

    def release(self, names: Sequence[str], *, holder: str) -> None:  # noqa: ARG002 - the only turn
        """Release the turn in a thread, because a server that stands still blocks a call for as
        long as the URL allows.
        """
        call = BackgroundThread(
            lambda: self._mailbox.run_script("release_turn", retry=RetryMode.NEVER, holder=holder),
            name="longwatch-redis-release",
        )
        call.start(inline_fallback=True)
        clock = SystemClock()
        call.wait(clock, Deadline.after(RELEASE_TIMEOUT, clock))


class RedisTurnSweeper:
    """The `EngineSweeper` of an engine over one mailbox. `key` names the mailbox and its store."""

    def __init__(  # noqa: PLR0913 - its parts, and the engine
        self,
        sweeper: RedisSweeper,
        turns: SweepTurns,
        retention: DeadRetention,
        *,
        key: str,
        selection: RowSelection,
        clock: Clock,
    ) -> None:
        self._sweeper = sweeper
        self._turns = turns
        self._retention = retention
        self._owners = HostOwners(key, self._read_owners, has_ended, clock)
        self._notifies = "ordinary" if selection is RowSelection.ORDINARY else "any"
        self._clock = clock
        self._waiting = WaitingQueues()
        self._leads = False
        self._look_at = self._read_owners_at = -inf
        self._owners_version = ""

    def sweep(self, on_given_up: Callable[[GivenUp], None]) -> SweepRound:
        self._update_turn()
        dead = self._owners.find_dead()
        changed = 0 if dead is None else self._sweeper.change(dead, on_given_up)
        if not self._leads:
            self._retention.apply(leads=False)
            return SweepRound(changed, leads=False)
        if self._clock.monotonic() >= self._look_at:
            changed += self._look_and_change(on_given_up)
        self._retention.apply(leads=True)
        return SweepRound(changed, next_in=max(self._look_at - self._clock.monotonic(), 0.0))

    def pause(self) -> None:
        self._turns.pause()
        self._leads = False
        self._owners.release()

    def close(self) -> None:
        self._owners.release()
        self._turns.release()

    def _update_turn(self) -> None:
        self._leads = bool(self._turns.update())
        if self._turns.gained:  # other engines have looked meanwhile
            self._sweeper.forget_lapses()
            self._look_at = self._read_owners_at = -inf

    def _look_and_change(self, on_given_up: Callable[[GivenUp], None]) -> int:
        """Look, change what was found, and plan the next look. After a full batch it is due now."""
        now = self._clock.monotonic()
        reads_owners = now >= self._read_owners_at
        reads = Reads.ALL if reads_owners else Reads.QUEUE
        to_all = self._waiting.asks_all(_QUEUE)
        found = self._sweeper.look(reads, notifies=self._notifies, to_all=to_all)
        self._waiting.record([_QUEUE] if found.is_waiting else [])
        if reads_owners:
            self._read_owners_at = now + OWNERS_INTERVAL
        changed = self._sweeper.change(found, on_given_up)
        self._look_at = now + (
            0.0 if changed >= SWEEP_BATCH else min(LOOK_INTERVAL, found.next_due)
        )
        return changed

    def _read_owners(self, always: bool) -> Look | None:  # noqa: FBT001 - a callback
        known = "" if always else self._owners_version
        found = self._sweeper.look(Reads.OWNERS, version=known)
        is_known = found.version == known
        self._owners_version = found.version
        return None if is_known else found
