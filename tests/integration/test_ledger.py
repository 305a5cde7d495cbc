from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.events import Events, LedgerSetAside
from longwatch.errors import StoreFullError
from longwatch.host.loop import LoopThread
from longwatch.store.sqlite import SqliteDatabase
from longwatch.supervisor.ledger import Ledger
from longwatch.supervisor.memory import LastEnd, Memory
from longwatch.testing import RecordingObserver

MONTH = 30 * 86_400.0
KNOWN = Memory(
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


class Books:
    """Ledgers on one file, and what they told."""

    def __init__(self, path: Path, loop: LoopThread) -> None:
        self.path = path
        self.loop = loop
        self.heard = RecordingObserver()

    def open(self) -> Ledger:
        return Ledger(self.path, clock=SystemClock(), events=Events(self.heard))

    def read(self, *known: str, forget_after: float = MONTH) -> dict[str, Memory]:
        ledger = self.open()
        try:
            return ledger.read(forget_after=forget_after, known=known)
        finally:
            ledger.stop()

    def note(self, ledger: Ledger, name: str, memory: Memory) -> None:
        async def noted() -> None:
            ledger.note(name, memory)
            await ledger.settled()

        self.loop.call(noted(), timeout=10.0)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with LoopThread() as loop:
        yield Books(tmp_path / "supervisor.db", loop)


def test_a_new_ledger_remembers_nothing(books: Books) -> None:
    assert {} == books.read()
    assert [] == books.heard.events


def test_what_is_settled_is_on_disk_while_the_ledger_is_open(books: Books) -> None:
    with books.open() as ledger:
        ledger.read(forget_after=MONTH)
        books.note(ledger, "web", KNOWN)
        other = SqliteDatabase(books.path)
        assert [("web",)] == other.read(
            lambda transaction: transaction.rows("SELECT name FROM longwatch_programs")
        )
        other.close()


def test_everything_comes_back_as_it_was(books: Books) -> None:
    with books.open() as ledger:
        books.note(ledger, "web", KNOWN)
        books.note(ledger, "web", Memory(desired=True))
        books.note(ledger, "web", KNOWN)
    assert {"web": KNOWN} == books.read("web")


def test_what_was_noted_and_not_settled_is_written_by_the_stop(books: Books) -> None:
    with books.open() as ledger:
        ledger.note("web", KNOWN)
    assert {"web": KNOWN} == books.read("web")


def test_programs_that_are_no_more_are_forgotten_after_their_time_and_known_ones_never(
    books: Books,
) -> None:
    with books.open() as ledger:
        books.note(ledger, "gone", KNOWN)
        books.note(ledger, "here", KNOWN)
    assert {"gone", "here"} == set(books.read("here"))
    assert {"here"} == set(books.read("here", forget_after=-1.0))


@pytest.mark.parametrize(
    "content",
    [
        b"this is no database, though long enough to be looked at " * 100,
        b"SQLite format 3\0" + b"x" * 4096,
    ],
)
def test_a_damaged_ledger_is_kept_aside_and_begun_anew(books: Books, content: bytes) -> None:
    books.path.write_bytes(content)
    assert {} == books.read()
    [told] = books.heard.of(LedgerSetAside)
    assert content == Path(told.kept_as).read_bytes()
    with books.open() as ledger:
        books.note(ledger, "web", KNOWN)
    assert {"web": KNOWN} == books.read("web")


@pytest.mark.parametrize(
    "memory",
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
def test_rows_that_no_ledger_wrote_are_kept_aside_too(books: Books, memory: str) -> None:
    with books.open() as ledger:
        books.note(ledger, "web", KNOWN)
    database = SqliteDatabase(books.path)
    database.write(
        lambda transaction: transaction.execute(
            "UPDATE longwatch_programs SET memory = :memory", {"memory": memory}
        )
    )
    database.close()
    assert {} == books.read("web")
    assert 1 == len(books.heard.of(LedgerSetAside))


def test_keys_of_a_newer_version_are_passed_over(books: Books) -> None:
    with books.open() as ledger:
        books.note(ledger, "web", KNOWN)
    database = SqliteDatabase(books.path)
    newer = json.dumps({**KNOWN.to_dict(), "mood": "good"})
    database.write(
        lambda transaction: transaction.execute(
            "UPDATE longwatch_programs SET memory = :memory", {"memory": newer}
        )
    )
    database.close()
    assert {"web": KNOWN} == books.read("web")


def test_a_full_disk_holds_nobody_up_and_the_notes_are_written_once_there_is_room(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("the disk is full")

    with books.open() as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(ledger._database, "write", full)
            with pytest.raises(StoreFullError):
                books.note(ledger, "web", KNOWN)
        books.note(ledger, "api", KNOWN)
    assert ["periodic_failed"] == books.heard.names()
    assert {"web": KNOWN, "api": KNOWN} == books.read("web", "api")
