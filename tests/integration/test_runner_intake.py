from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flow_stores import KINDS, opened_store
from intake_rig import IntakeRig, item, items, running_intake
from longwatch.core.events.runner import StreamEventsTaken
from longwatch.errors import StoreError
from longwatch.runner.policy import OverflowPolicy, RunnerPolicy
from longwatch.runner.seams import StreamItem
from longwatch.runner.source_lease import SourceLeaseLostError
from longwatch.store.database import Database

TABLES = ("longwatch_runner_events", "longwatch_messages", "longwatch_dead_letters")


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def rig(database: Database) -> Iterator[IntakeRig]:
    with running_intake(database, "eu", "us", "disabled") as opened:
        yield opened


def test_events_are_queued_in_order_with_the_cursor(rig: IntakeRig) -> None:
    """Each event is stored and has a message that names it; the last event id is stored too."""
    rig.take(items(1, 2, 3))
    assert ["1", "2", "3"] == rig.queued()
    assert rig.intake.cursor_now("eu") == "3"
    assert rig.intake.cursor_now("us") == ""
    [message] = rig.mailbox().peek(limit=1)
    stored = rig.store.event(message.id)
    assert stored is not None
    assert f'{{"event":"{stored.id}"}}'.encode() == message.body
    assert (items(1)[0].data, "error", None, "eu") == (
        stored.data,
        stored.severity,
        stored.outcome,
        stored.source,
    )
    assert message.enqueued_at == pytest.approx(stored.received_at, abs=5)


def test_filtered_events_are_stored_with_their_reason(rig: IntakeRig) -> None:
    """What is filtered has a row and no message; malformed events are dead letters."""
    broken = StreamItem("{nonsense", "4")
    rig.take([item(1), item(2, severity="debug"), item(3, fault="f1"), broken, item(5)])
    assert ["1", "5"] == rig.queued()
    assert {
        "1": "open",
        "2": "filtered severity",
        "3": "filtered duplicate",
        "4": "dead-lettered malformed",
        "5": "open",
    } == rig.outcomes()
    assert [("malformed", b"{nonsense")] == rig.dead()
    letter = rig.mailbox().dead_letters()[0]
    assert "malformed" in str(letter.error)
    assert {
        "received": {"error": 3, "debug": 1, "other": 1},
        "filtered": {"severity": 1, "duplicate": 1, "malformed": 1},
        "dropped": {},
        "totals": {"queued": 2},
    } == rig.counts()


def test_a_disabled_source_queues_nothing(rig: IntakeRig) -> None:
    rig.take(items(1), source="disabled")
    assert {"1": "filtered disabled"} == rig.outcomes("disabled")
    assert [] == rig.queued("disabled")


def test_a_replay_changes_nothing(rig: IntakeRig) -> None:
    """Items that were stored before change no row, and are counted as duplicates."""
    batch = [item(1), item(2, severity="debug"), StreamItem("{", "3"), item(4)]
    rig.take(batch)
    before = rig.outcomes(), rig.queued(), [rig.rows(table) for table in TABLES]
    rig.take(batch)
    rig.take([*batch[1:], item(5), item(5)])
    after = rig.outcomes(), rig.queued(), [rig.rows(table) for table in TABLES]
    assert {**before[0], "5": "open"} == after[0]
    assert [*before[1], "5"] == after[1]
    assert [before[2][0] + 1, before[2][1] + 1, before[2][2]] == after[2]
    assert rig.counts()["filtered"]["duplicate"] == len(batch) + len(batch[1:]) + 1


def test_a_server_may_use_an_id_again(rig: IntakeRig) -> None:
    """The same id with other data is another event; so is the same data of another source."""
    rig.take([item(1)])
    rig.take([item(1, fault="another")])
    rig.take([item(1)], source="us")
    assert ["1", "1"] == rig.queued()
    assert ["1"] == rig.queued("us")


def test_items_without_an_id_are_told_apart_by_their_fault(rig: IntakeRig) -> None:
    """Without ids only the window finds what is sent again."""
    nameless = StreamItem(item(1).data)
    rig.take([nameless, nameless], cursor="c")
    assert rig.counts()["totals"] == {"queued": 1}
    assert rig.counts()["filtered"] == {"duplicate": 1}
    assert rig.intake.cursor_now("eu") == "c"


def test_a_cursor_alone_is_stored(rig: IntakeRig) -> None:
    """A batch without items moves the last event id, and may clear it."""
    rig.take([], cursor="7")
    assert rig.intake.cursor_now("eu") == "7"
    rig.intake.take_now("eu", [], cursor="")
    assert rig.intake.cursor_now("eu") == ""
    assert [] == rig.emitted


def test_bad_bytes_are_survived(rig: IntakeRig) -> None:
    """Zero bytes, surrogates and endless ids are stored in a form that every store takes."""
    rig.take(
        [StreamItem("\0\ud800", "a\0\ud800"), StreamItem(item(2).data, "x" * 100_000), item(3)]
    )
    assert ["malformed"] == [reason for reason, _ in rig.dead()]
    assert len(rig.queued()) == 2
    rig.intake.take_now("eu", [], cursor="b\0\ud800")
    assert rig.intake.cursor_now("eu") == "b\\x00\\ud800"
    rig.take([StreamItem(item(2).data, "x" * 100_000)], cursor="z")
    assert rig.counts()["filtered"]["duplicate"] == 1


def test_an_oversize_event_is_dropped(database: Database) -> None:
    """An event that is too large is stored as dropped, without its data; others go on."""
    with running_intake(database, policy=RunnerPolicy(max_event_bytes=300)) as rig:
        rig.take([item(1, context="x" * 400), item(2)])
        assert {"1": "dropped oversize", "2": "open"} == rig.outcomes()
        assert {"oversize": 1} == rig.counts()["dropped"]
        asyncio.run(rig.intake.report_oversize("eu", 3))
        assert {"oversize": 4} == rig.counts()["dropped"]
        assert rig.counts()["received"] == {"other": 4, "error": 1}


def failing_after(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction does all its work and then fails."""
    write = database.write

    def fail(work: Callable[[Any], Any], **options: Any) -> Any:
        def do(tx: Any) -> Any:
            work(tx)
            raise StoreError("injected")

        monkeypatch.setattr(database, "write", write)
        return write(do, **options)

    monkeypatch.setattr(database, "write", fail)


def test_a_failed_transaction_leaves_nothing(
    rig: IntakeRig, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If anything fails, no event, message, dead letter or cursor is stored; the batch can be sent
    again, also one without ids.
    """
    batch = [item(2), StreamItem("{", "3"), StreamItem(item(4).data)]
    rig.take(items(1))
    before = [rig.rows(table) for table in TABLES]
    failing_after(database, monkeypatch)
    with pytest.raises(StoreError, match="injected"):
        rig.take(batch, cursor="9")
    assert before == [rig.rows(table) for table in TABLES]
    assert rig.intake.cursor_now("eu") == "1"
    rig.take(batch, cursor="9")
    assert rig.counts()["totals"]["queued"] == 3
    assert rig.intake.cursor_now("eu") == "9"


def test_a_commit_whose_reply_was_lost_doubles_nothing(
    rig: IntakeRig, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the transaction was committed and the caller gets an error, the same batch changes nothing
    later, also its items without ids.
    """
    write = database.write

    def lose_reply(work: Callable[[Any], Any], **options: Any) -> Any:
        monkeypatch.setattr(database, "write", write)
        write(work, **options)
        raise StoreError("unknown")

    batch = [item(1), StreamItem("{", "2"), StreamItem(item(3).data)]
    rig.take(items(0))
    monkeypatch.setattr(database, "write", lose_reply)
    with pytest.raises(StoreError, match="unknown"):
        rig.take(batch, cursor="9")
    stored = rig.queued(), rig.dead()
    rig.take(batch, cursor="9")
    assert (rig.queued(), rig.dead()) == stored
    assert len(stored[0]) == 3


def test_a_take_that_is_given_up_stores_all_or_nothing(rig: IntakeRig) -> None:
    """A caller that is cancelled while it waits leaves a whole batch or none, and the intake goes
    on.
    """

    async def cancel_many() -> None:
        for n in range(20):
            take = asyncio.ensure_future(rig.intake.take("eu", items(2 * n, 2 * n + 1), cursor="x"))
            await asyncio.sleep(0.001 * (n % 3))
            take.cancel()
            await asyncio.wait({take})
        await rig.intake.take("eu", items(100), cursor="100")

    asyncio.run(cancel_many())
    stored = [int(number) for number in rig.queued()]
    assert stored[-1] == 100
    assert all(number % 2 or number + 1 in stored for number in stored[:-1])
    assert rig.intake.cursor_now("eu") == "100"


def test_only_the_holder_of_the_lease_stores(rig: IntakeRig, database: Database) -> None:
    """A runner whose lease was taken over stores nothing, and the other one goes on from its
    cursor.
    """
    rig.take(items(1))
    with running_intake(database, "eu", "us") as other:
        assert other.intake.leases.held() == frozenset()
        with pytest.raises(SourceLeaseLostError, match="does not hold"):
            other.take(items(2))
        steal(other)
        assert other.intake.leases.held() == {"eu", "us"}
        with pytest.raises(SourceLeaseLostError, match="taken over"):
            rig.take(items(2), cursor="stale")
        assert "eu" not in rig.intake.leases.held()
        assert other.intake.cursor_now("eu") == "1"
        other.take([item(1), item(2), item(3, fault="f1")])
        assert ["1", "2"] == other.queued()
        assert other.outcomes()["3"] == "filtered duplicate"


def steal(rig: IntakeRig) -> None:
    """Take the leases of a runner that lives, as after its leases have lapsed."""
    sql = "UPDATE longwatch_runner_sources SET lease_state = 0, owner = NULL"
    rig.database.write(lambda tx: tx.execute(sql))
    rig.intake.leases.renew()


def test_the_window_survives_a_restart(database: Database) -> None:
    """A new runner knows the faults that the last one has queued, and how many events wait."""
    policy = RunnerPolicy(source_queue_size=2, overflow=OverflowPolicy.REJECT)
    with running_intake(database, policy=policy) as rig:
        rig.take([item(1), item(2, severity="debug", fault="mild")])
    with running_intake(database, policy=policy) as rig:
        rig.take([item(3, fault="f1"), item(4, fault="mild"), item(5)])
        assert {
            "1": "open",
            "2": "filtered severity",
            "3": "filtered duplicate",
            "4": "open",
            "5": "dropped overflow",
        } == rig.outcomes()
    database.jump.wall += policy.dedup_window + 1
    with running_intake(database, policy=RunnerPolicy()) as rig:
        rig.take([item(6, fault="f1")])
        assert rig.outcomes()["6"] == "open"


def test_a_full_queue_drops_the_oldest(database: Database) -> None:
    """The oldest events that wait make room, as dead letters; a running one stays."""
    with running_intake(database, policy=RunnerPolicy(source_queue_size=3)) as rig:
        rig.take(items(1, 2, 3))
        backend = rig.mailbox()
        owner = backend.default_owner()
        [running] = backend.exchange([], owner=owner, limit=1, lease_seconds=60).claimed
        rig.take(items(4, 5))
        assert ["3", "4", "5"] == rig.queued()
        assert [("overflow", item(2).data.encode())] == rig.dead()
        assert "open" == rig.outcomes()["1"]
        assert running.item.id
        rig.take(items(6, 7, 8, 9, 10))
        assert ["8", "9", "10"] == rig.queued()
        assert ["2", "3", "4", "5", "6", "7"] == [
            number for number, outcome in rig.outcomes().items() if outcome == "dropped overflow"
        ]
        assert len(rig.dead()) == 6
        assert {"overflow": 6} == rig.counts()["dropped"]
        assert rig.counts()["totals"]["queued"] + 2 == 10
        rig.take([item(11, fault="f7")])
        assert "11" in rig.queued(), "the fault of a dropped event is no duplicate"


def test_a_full_queue_rejects_newcomers(database: Database) -> None:
    """With the policy `reject` those that wait stay; while the breaker is open it counts apart."""
    is_open: list[bool] = []
    policy = RunnerPolicy(source_queue_size=3, overflow=OverflowPolicy.REJECT)
    with running_intake(database, policy=policy, is_breaker_open=lambda: bool(is_open)) as rig:
        rig.take(items(1, 2))
        rig.take([item(3), item(4), item(5, fault="f4")])
        assert ["1", "2", "3"] == rig.queued()
        assert [
            ("overflow", item(4).data.encode()),
            ("overflow", item(5, fault="f4").data.encode()),
        ] == rig.dead()
        assert {"overflow": 2} == rig.counts()["dropped"]
        is_open.append(True)
        rig.take(items(6))
        assert {"overflow": 2} == rig.counts()["dropped"]
        assert rig.counts()["totals"] == {"queued": 3, "breaker_dropped": 1}
        assert rig.outcomes()["6"] == "dropped overflow"


def test_sources_that_wait_together_share_a_transaction(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes of many sources that wait at the same time are stored by few transactions; one source
    that is lost does not hurt the others.
    """
    names = [f"s{n}" for n in range(20)]
    writes: list[object] = []
    with running_intake(database, *names) as rig:
        for name in names:
            rig.take(items(0), source=name)
        write = database.write

        def count(work: Any, **options: Any) -> Any:
            writes.append(work)
            return write(work, **options)

        lost = "UPDATE longwatch_runner_sources SET term = term + 1 WHERE name = 's3'"
        database.write(lambda tx: tx.execute(lost))
        monkeypatch.setattr(database, "write", count)

        async def take_all() -> list[BaseException | None]:
            return await asyncio.gather(
                *(rig.intake.take(name, items(1, 2), cursor="2") for name in names),
                return_exceptions=True,
            )

        results = asyncio.run(take_all())
        assert ["s3"] == [name for name, error in zip(names, results, strict=True) if error]
        assert isinstance(results[3], SourceLeaseLostError)
        assert len(writes) <= len(names) // 2
        assert rig.queued("s4") == ["0", "1", "2"]
        assert asyncio.run(rig.intake.cursor("s4")) == "2"
        assert asyncio.run(rig.intake.cursor("s3")) == "0"


def test_a_fault_of_one_take_does_not_hurt_the_others(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is not the store's goes to the take that caused it alone."""
    prepare = rig.intake._writer.prepare

    def fail(source: str, *rest: Any) -> Any:
        if source == "us":
            raise ValueError("injected")
        return prepare(source, *rest)

    monkeypatch.setattr(rig.intake._writer, "prepare", fail)

    async def take_both() -> list[BaseException | None]:
        takes = [rig.intake.take(name, items(1), cursor="1") for name in ("eu", "us")]
        return await asyncio.gather(*takes, return_exceptions=True)

    first, second = asyncio.run(take_both())
    assert first is None
    assert isinstance(second, ValueError)
    assert rig.queued() == ["1"]


def test_every_item_is_counted_once(rig: IntakeRig) -> None:
    """received = filtered + dropped + queued, whatever comes."""
    rig.take(
        [
            item(n, severity=["debug", "error", "purple"][n % 3], fault=f"f{n % 7}")
            for n in range(50)
        ]
    )
    rig.take([StreamItem("", "x"), *items(*range(40, 60))])
    counts = rig.counts()
    total = sum(counts["received"].values())
    assert total == 71
    ended = Counter(counts["filtered"]) + Counter(counts["dropped"])
    assert total == sum(ended.values()) + counts["totals"]["queued"]
    assert all(isinstance(each, StreamEventsTaken) for each in rig.emitted)
