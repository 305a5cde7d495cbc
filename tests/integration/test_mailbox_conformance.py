from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import (
    ClaimedRow,
    ExchangeResult,
    GivenUp,
    Settlement,
    ignore_given_up,
)
from longwatch.errors import MailboxFullError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.memory import MemoryBackend, MemoryStore
from longwatch.mailbox.memory_contents import MemoryContents
from longwatch.mailbox.memory_queue import LeaseState, MemoryQueue, StoredMessage
from longwatch.mailbox.records import NewMessage
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, RowSelection
from longwatch.store.json_codec import Codec
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import check_mailbox
from longwatch.testing.mailbox_suite import harness as harness_module
from longwatch.testing.mailbox_suite.harness import MailboxHarness
from longwatch.testing.mailbox_suite.state_machine import run_state_machine


def jump_memory(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    store = mailbox.backend.store  # type: ignore[attr-defined]
    store.jump.lease += lease
    store.jump.wall += wall


def jump_sqlite(mailbox: Mailbox[Any], lease: float, wall: float) -> None:
    database = mailbox.backend.database  # type: ignore[attr-defined]
    database.jump.lease += lease
    database.jump.wall += wall


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(tmp_path / "mailboxes.db")
    yield opened
    opened.close()


def test_memory_keeps_the_contract() -> None:
    check_mailbox(partial(open_mailbox, MemoryStore()), jump=jump_memory)


def test_sqlite_keeps_the_contract_over_threads_and_processes(database: SqliteDatabase) -> None:
    reopen = partial(open_mailbox, database.url)
    check_mailbox(
        partial(open_mailbox, database), jump=jump_sqlite, reopen=reopen, transact=database.transact
    )


FORKED = """
import os
from longwatch.errors import MailboxFullError
from longwatch.mailbox import open_mailbox
mailbox = open_mailbox("memory://", "work")
mailbox.send("the parent's")
if os.fork() == 0:
    assert [] == mailbox.receive(), "a forked child starts empty"
    mailbox.send("the child's")
    assert ["the child's"] == [message.body for message in mailbox.receive(max_messages=2)]
    os._exit(0)
assert 0 == os.wait()[1]
assert ["the parent's"] == [message.body for message in mailbox.receive(max_messages=2)]
"""


def test_a_forked_child_shares_no_memory_with_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=60
    )
    assert (0, "") == (done.returncode, done.stderr)


class AcceptsStaleReceipts(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        super().settle(settlements, tx=tx)
        return [True] * len(settlements)


class ShortensLeases(MemoryBackend):
    def renew_one(self, claim: Claim, *, lease_seconds: float) -> bool:
        row = self.store.contents().find_claimed(claim)
        if row is not None:
            row.lease_until = self.store.lease_now() + lease_seconds
        return row is not None


class HandsOutTheNewestFirst(MemoryBackend):
    def exchange(self, settlements: Sequence[Settlement], **options: Any) -> ExchangeResult:
        exchange = super().exchange(settlements, **options)
        return ExchangeResult(exchange.settled, exchange.claimed[::-1])


class CountsNoCrashes(MemoryBackend):
    def _release(
        self, contents: MemoryContents, row: StoredMessage, blame: Blame, **options: Any
    ) -> list[GivenUp]:
        counted = Blame.RELEASE if blame is Blame.CRASH else blame
        return super()._release(contents, row, counted, **options)


class CountsLossesAsCrashes(MemoryBackend):
    def _release(
        self, contents: MemoryContents, row: StoredMessage, blame: Blame, **options: Any
    ) -> list[GivenUp]:
        counted = Blame.CRASH if blame is Blame.LOST else blame
        return super()._release(contents, row, counted, **options)


class CountsReleasesAsFailures(MemoryBackend):
    def _release(
        self, contents: MemoryContents, row: StoredMessage, blame: Blame, **options: Any
    ) -> list[GivenUp]:
        counted = Blame.FAILURE if blame is Blame.RELEASE else blame
        return super()._release(contents, row, counted, **options)


class PutsWhatComesBackAtTheEnd(MemoryBackend):
    def _release(
        self, contents: MemoryContents, row: StoredMessage, blame: Blame, **options: Any
    ) -> list[GivenUp]:
        contents.end_lease(row)
        row.seq = next(contents.sequence)
        contents.leases[row.owner][row.seq] = row
        return super()._release(contents, row, blame, **options)


class CannotPause(MemoryBackend):
    def pause(self, *, paused: bool) -> None:
        pass


class StoresRepeatedKeys(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        return super().put(
            [NewMessage(id=each.id, body=each.body, delay=each.delay) for each in messages], tx=tx
        )


class StoresHalfABatch(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        return [
            stored
            for letter in messages
            for stored in super(StoresHalfABatch, self).put([letter], tx=tx)
        ]


class IgnoresTransactions(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        return super().put(messages)


class NeverNotifies(MemoryBackend):
    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        return lambda: None


class CountsOnlyWhatIsReady(MemoryBackend):
    def _require_room(self, queue: MemoryQueue, messages: Sequence[NewMessage]) -> None:
        if queue.counts[LeaseState.READY] + len(messages) > (
            self.limits.max_size or len(messages) + len(queue)
        ):
            raise MailboxFullError("full")


class RunsSuspectsBesideOthers(MemoryBackend):
    def _claim(
        self, contents: MemoryContents, owner: int, limit: int, *options: Any
    ) -> tuple[list[ClaimedRow], list[GivenUp]]:
        leased: list[ClaimedRow] = []
        while len(leased) < limit and (
            more := super()._claim(contents, owner, limit - len(leased), *options)[0]
        ):
            leased += more
        return leased, []


class IgnoresTheSelection(MemoryBackend):
    def exchange(self, settlements: Sequence[Settlement], **options: Any) -> ExchangeResult:
        return super().exchange(settlements, **{**options, "selection": RowSelection.ANY})


class NeverGivesUp(MemoryBackend):
    def _queue(self, contents: MemoryContents) -> MemoryQueue:
        queue = super()._queue(contents)
        queue.limits = MailboxLimits(max_failures=10**9, max_crashes=10**9, max_lost=10**9)
        return queue


class KeepsItsBudgetsForItself(MemoryBackend):
    def _queue(self, contents: MemoryContents) -> MemoryQueue:
        queue = super()._queue(contents)
        queue.limits = self.limits
        return queue


class GivesUpAtTheNextClaim(MemoryBackend):
    def _release(
        self, contents: MemoryContents, row: StoredMessage, blame: Blame, **options: Any
    ) -> list[GivenUp]:
        limits, row.queue.limits = row.queue.limits, MailboxLimits(max_failures=10**9)
        given_up = super()._release(contents, row, blame, **options)
        row.queue.limits = limits
        return given_up


class ReportsNoDeadLetters(MemoryBackend):
    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        return super().sweep()


class ForgetsWhoDrains(MemoryBackend):
    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        pass


class TrustsItsClock(MemoryBackend):
    def register_owner(self, incarnation: Incarnation, **facts: Any) -> int:
        return super().register_owner(incarnation, **{**facts, "renew_seconds": None})


class ForgetsTracebacks(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement], *, tx: Any = None) -> list[bool]:
        return super().settle([each._replace(traceback=None) for each in settlements], tx=tx)


class HandsOutTheExpired(MemoryBackend):
    def _claim(
        self, contents: MemoryContents, *options: Any
    ) -> tuple[list[ClaimedRow], list[GivenUp]]:
        queue = self._queue(contents)
        reason = queue.give_up_reason
        queue.give_up_reason = lambda row, wall: reason(row, wall - wall)  # type: ignore[method-assign]
        claimed = super()._claim(contents, *options)
        queue.give_up_reason = reason  # type: ignore[method-assign]
        return claimed


class KeepsNoExpired(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        kept = [NewMessage(**{**_fields(letter), "keep_expired": False}) for letter in messages]
        return super().put(kept, tx=tx)


class ForgetsWhereToReply(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        return super().put(
            [NewMessage(**{**_fields(letter), "reply_to": None}) for letter in messages], tx=tx
        )


class ForgetsHeaders(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        return super().put(
            [NewMessage(**{**_fields(letter), "headers": None}) for letter in messages], tx=tx
        )


class DeliversEarly(MemoryBackend):
    def put(self, messages: Sequence[NewMessage], *, tx: Any = None) -> list[str]:
        return super().put(
            [NewMessage(**{**_fields(letter), "delay": 0.0}) for letter in messages], tx=tx
        )


class PurgesTheLeased(MemoryBackend):
    def purge(self) -> int:
        contents = self.store.contents()
        for row in [
            row
            for row in contents.queue(self.name).messages.values()
            if row.lease_state is LeaseState.LEASED
        ]:
            contents.end_lease(row)
            row.queue.remove(row)
        return super().purge()


class DropsDeadLetters(MemoryBackend):
    def drop(self, ids: Sequence[str]) -> list[bool]:
        return [True for _ in ids]


class IgnoresRetention(MemoryBackend):
    def __init__(
        self, store: MemoryStore, name: str, *, limits: MailboxLimits | None = None
    ) -> None:
        super().__init__(store, name, limits=limits)
        self.limits = replace(self.limits, dead_retention=None)


class LeasesByTheWallClock(MemoryStore):
    def lease_now(self) -> float:
        return self.wall_now()


def _fields(letter: NewMessage) -> dict[str, Any]:
    return letter._asdict()


def factory_of(backend: type[MemoryBackend], store: MemoryStore) -> Callable[..., Mailbox[Any]]:
    def opened(
        name: str, body_type: Any = Any, *, limits: MailboxLimits | None = None
    ) -> Mailbox[Any]:
        return Mailbox(
            name, backend(store, name, limits=limits), codec=Codec(body_type), router=opened
        )

    return opened


BROKEN: list[tuple[type[MemoryBackend], str]] = [
    (AcceptsStaleReceipts, "acknowledge_many() returns a result for each"),
    (CountsNoCrashes, "is poison"),
    (CannotPause, "a resumed mailbox"),
    (CountsOnlyWhatIsReady, "max_size counts leased and delayed ones"),
    (CountsReleasesAsFailures, "a release spends nothing"),
    (DeliversEarly, "a delayed message is not received"),
    (ForgetsWhereToReply, "reply_to is the mailbox's name"),
    (ForgetsHeaders, "headers are received as they were sent"),
    (HandsOutTheExpired, "skips expired messages"),
    (HandsOutTheNewestFirst, "send_many() keeps the order"),
    (IgnoresTransactions, "send(tx=) is refused"),
    (KeepsNoExpired, "expired messages are kept"),
    (NeverGivesUp, "spent its failures"),
    (PurgesTheLeased, "a leased message stays"),
    (PutsWhatComesBackAtTheEnd, "keep their place"),
    (IgnoresRetention, "retention"),
    (RunsSuspectsBesideOthers, "claimed alone"),
    (IgnoresTheSelection, "skip suspects"),
    (KeepsItsBudgetsForItself, "stored with the mailbox"),
    (GivesUpAtTheNextClaim, "dead-lettered with its last failure"),
    (ReportsNoDeadLetters, "every dead letter of a sweep is reported"),
    (ForgetsWhoDrains, "draining blames no row"),
    (TrustsItsClock, "lapse together keep their leases"),
    (ForgetsTracebacks, "has its traceback"),
    (CountsLossesAsCrashes, "every row is lost"),
    (ShortensLeases, "a shorter extension does not shorten it"),
    (StoresHalfABatch, "a refused batch stores nothing"),
    (StoresRepeatedKeys, "the key of a queued message gives its id"),
    (DropsDeadLetters, "dead"),
    (NeverNotifies, "woken"),
]


@pytest.mark.parametrize(
    ("backend", "rule"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_backend_that_breaks_a_rule_is_refused_by_its_name(
    backend: type[MemoryBackend], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_module, "TIMEOUT", 3.0)
    with pytest.raises(AssertionError) as refused:
        check_mailbox(factory_of(backend, MemoryStore()), jump=jump_memory)
    assert rule in str(refused.value)


def test_a_store_that_judges_leases_by_the_wall_clock_is_refused() -> None:
    with pytest.raises(AssertionError, match="wall clock"):
        check_mailbox(factory_of(MemoryBackend, LeasesByTheWallClock()), jump=jump_memory)


@pytest.mark.parametrize(
    "backend",
    [
        AcceptsStaleReceipts,
        CountsNoCrashes,
        CannotPause,
        CountsOnlyWhatIsReady,
        DeliversEarly,
        HandsOutTheNewestFirst,
        KeepsNoExpired,
        NeverGivesUp,
        PurgesTheLeased,
        PutsWhatComesBackAtTheEnd,
        RunsSuspectsBesideOthers,
        ShortensLeases,
        StoresHalfABatch,
        StoresRepeatedKeys,
        DropsDeadLetters,
    ],
)
def test_the_model_alone_finds_a_broken_rule(backend: type[MemoryBackend]) -> None:
    harness = MailboxHarness(
        factory_of(backend, MemoryStore()), jump=jump_memory, reopen=None, transact=None
    )
    unshrunk = settings(max_examples=300, stateful_step_count=40, phases=[Phase.generate])
    with pytest.raises(AssertionError, match="rule broken"):
        run_state_machine(harness, runs=unshrunk)
