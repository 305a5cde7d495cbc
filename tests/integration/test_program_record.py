from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import StateFileQuarantined
from longwatch.errors import StoreFullError
from longwatch.host.loop import EventLoopThread
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.supervisor.ledger import ProgramLedger
from longwatch.supervisor.program_record import LastEnd, ProgramRecord
from longwatch.testing import RecordingObserver

MONTH = 30 * 86_400.0
KNOWN = ProgramRecord(
    desired=False,
    starts=7,
    restarts=6,
    failures=2,
    hangs=1,
    history=[1.5, 2.5],
    last_start=3.0,
    last_end=LastEnd("exit 1", "unexpected_exit", 4.0, 0.5),
    breaker={"events": [1.0], "opened_at": 2.0, "reason": "6 failures in 60 s", "trial": True},
)


class LedgerRig:
    """Ledgers on one file, and what they told."""

    def __init__(self, path: Path, loop: EventLoopThread) -> None:
        self.path = path
        self.loop = loop
        self.observer = RecordingObserver()

    def open(self) -> ProgramLedger:
        return ProgramLedger(self.path, clock=SystemClock(), events=Events(self.observer))

    def read(self, *known: str, forget_after: float = MONTH) -> dict[str, ProgramRecord]:
        ledger = self.open()
        try:
            return ledger.load(forget_after=forget_after, known=known)
        finally:
            ledger.stop()

    def write(self, ledger: ProgramLedger, name: str, record: ProgramRecord) -> None:
        async def noted() -> None:
            ledger.save(name, record)
            await ledger.flush()

        self.loop.call(noted(), timeout=10.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LedgerRig]:
    with EventLoopThread() as loop:
        yield LedgerRig(tmp_path / "supervisor.db", loop)


def test_a_new_ledger_remembers_nothing(rig: LedgerRig) -> None:
    assert {} == rig.read()
    assert [] == rig.observer.events


def test_what_is_settled_is_on_disk_while_the_ledger_is_open(rig: LedgerRig) -> None:
    with rig.open() as ledger:
        ledger.load(forget_after=MONTH)
        rig.write(ledger, "web", KNOWN)
        other = SqliteDatabase(rig.path)
        assert [("web",)] == other.read(
            lambda transaction: transaction.rows("SELECT name FROM longwatch_programs")
        )
        other.close()


def test_everything_comes_back_as_it_was(rig: LedgerRig) -> None:
    with rig.open() as ledger:
        rig.write(ledger, "web", KNOWN)
        rig.write(ledger, "web", ProgramRecord(desired=True))
        rig.write(ledger, "web", KNOWN)
    assert {"web": KNOWN} == rig.read("web")


def test_what_was_noted_and_not_settled_is_written_by_the_stop(rig: LedgerRig) -> None:
    with rig.open() as ledger:
        ledger.save("web", KNOWN)
    assert {"web": KNOWN} == rig.read("web")


def test_programs_that_are_no_more_are_forgotten_after_their_time_and_known_ones_never(
    rig: LedgerRig,
) -> None:
    with rig.open() as ledger:
        rig.write(ledger, "gone", KNOWN)
        rig.write(ledger, "here", KNOWN)
    assert {"gone", "here"} == set(rig.read("here"))
    assert {"here"} == set(rig.read("here", forget_after=-1.0))


@pytest.mark.parametrize(
    "content",
    [
        b"this is no database, though long enough to be looked at " * 100,
        b"SQLite format 3\0" + b"x" * 4096,
    ],
)
def test_a_damaged_ledger_is_kept_aside_and_begun_anew(rig: LedgerRig, content: bytes) -> None:
    rig.path.write_bytes(content)
    assert {} == rig.read()
    [told] = rig.observer.of(StateFileQuarantined)
    assert content == Path(told.quarantined_as).read_bytes()
    with rig.open() as ledger:
        rig.write(ledger, "web", KNOWN)
    assert {"web": KNOWN} == rig.read("web")


def test_a_ledger_of_an_older_schema_is_quarantined_and_begun_anew(rig: LedgerRig) -> None:
    with closing(sqlite3.connect(rig.path)) as store, store:
        store.execute("CREATE TABLE longwatch_schema (version INTEGER, name TEXT, applied_at TEXT)")
        store.execute("INSERT INTO longwatch_schema VALUES (3, 'flow', '')")
    assert {} == rig.read()
    [event] = rig.observer.of(StateFileQuarantined)
    assert "it was created by an older Longwatch" == event.reason
    with rig.open() as ledger:
        rig.write(ledger, "web", KNOWN)
    assert {"web": KNOWN} == rig.read("web")


@pytest.mark.parametrize(
    "record",
    [
        "[1",
        "null",
        '"text"',
        "[" * 100_000,
        '{"breaker": {}}',
        '{"breaker": []}',
        '{"breaker": {"events": "x", "opened_at": null, "reason": "", "trial": true}}',
        '{"breaker": {"events": [], "opened_at": "now", "reason": "", "trial": true}}',
        '{"starts": null}',
        '{"starts": "7"}',
        '{"failures": true}',
        '{"failures": -1}',
        '{"hangs": 1e400}',
        '{"last_start": NaN}',
        '{"last_start": 1e400}',
        '{"history": 5}',
        '{"history": [NaN]}',
        '{"desired": "stopped"}',
        '{"last_end": ["exit 1"]}',
    ],
)
def test_rows_that_no_ledger_wrote_are_kept_aside_too(rig: LedgerRig, record: str) -> None:
    with rig.open() as ledger:
        rig.write(ledger, "web", KNOWN)
    database = SqliteDatabase(rig.path)
    database.write(
        lambda transaction: transaction.execute(
            "UPDATE longwatch_programs SET record = :record", {"record": record}
        )
    )
    database.close()
    assert {} == rig.read("web")
    assert 1 == len(rig.observer.of(StateFileQuarantined))


def test_keys_of_a_newer_version_are_passed_over(rig: LedgerRig) -> None:
    with rig.open() as ledger:
        rig.write(ledger, "web", KNOWN)
    database = SqliteDatabase(rig.path)
    newer = json.dumps({**KNOWN.to_dict(), "mood": "good"})
    database.write(
        lambda transaction: transaction.execute(
            "UPDATE longwatch_programs SET record = :record", {"record": newer}
        )
    )
    database.close()
    assert {"web": KNOWN} == rig.read("web")


def test_a_full_disk_holds_nobody_up_and_the_notes_are_written_once_there_is_room(
    rig: LedgerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("the disk is full")

    with rig.open() as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(ledger._database, "write", full)
            with pytest.raises(StoreFullError):
                rig.write(ledger, "web", KNOWN)
        rig.write(ledger, "api", KNOWN)
    assert ["periodic_task_failed"] == rig.observer.names()
    assert {"web": KNOWN, "api": KNOWN} == rig.read("web", "api")


def test_a_disk_that_does_not_answer_holds_up_the_end_for_no_longer_than_its_time(
    rig: LedgerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the ledger says that it is not down yet; once the disk answers, it can be."""
    answers = threading.Event()
    write = SqliteDatabase.write

    def blocked(database: SqliteDatabase, work: Any) -> Any:
        answers.wait()
        return write(database, work)

    ledger = rig.open()
    ledger.load(forget_after=MONTH)
    ledger.start()
    monkeypatch.setattr(SqliteDatabase, "write", blocked)
    ledger.save("a", KNOWN)
    assert not ledger.stop(timeout=0.1)
    answers.set()
    assert ledger.stop()
    assert {"a": KNOWN} == rig.read("a")
