"""Suspects under a parent: ordinary engines leave and report them, and a process of their own runs
them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine_rig import FakeSource
from longwatch.core.events.base import Events
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.policy import MAX_SUSPECT_PROCESSES, EngineEnvironment
from longwatch.host.parent_channel import ParentChannel
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.runtime import LoopGroup
from longwatch.store.claims import RowSelection
from longwatch.store.sqlite.database import SqliteDatabase
from loop_rig import GatedLoop, StubLoop, running_group, running_loop, wait_until
from parent_rig import Parent


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    made = Parent(tmp_path / "line")
    yield made
    made.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(tmp_path / "m.db") as made:
        yield made


def send_suspect(mailbox: Mailbox[Any], body: str, *, crashes: int = 2) -> None:
    """Send a message that has crashed so many processes."""
    message_id = mailbox.send(body)
    path = mailbox.backend.database.path  # type: ignore[attr-defined]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE longwatch_messages SET crashes = ? WHERE id = ?", (crashes, message_id)
        )


def group_under(parent: Parent, *loops: Any, **role: bool) -> LoopGroup:
    group = LoopGroup(loops, events=Events())
    group.set_parent(ParentChannel(parent.address), **role)
    return group


# --- ordinary workers ---


def test_an_ordinary_worker_leaves_a_suspect_and_reports_it(
    database: SqliteDatabase, parent: Parent
) -> None:
    mailbox = open_mailbox(database, "jobs")
    send_suspect(mailbox, "suspect")
    mailbox.send("ordinary")
    send_suspect(mailbox, "crashed once", crashes=1)
    loop = GatedLoop(requests=mailbox, name="jobs", concurrency=4)
    with running_group(group_under(parent, loop)):
        begun = {loop.next_started().request for _ in range(2)}
        word = parent.receive_about("suspects")
        assert ({"ordinary", "crashed once"}, True) == (begun, loop.started.empty())
        assert (1, mailbox.backend.locator()) == (word["count"], word["source"])
        assert 1 == parent.receive_about("suspects")["count"], "it is repeated"


def test_no_more_are_counted_than_processes_can_run(parent: Parent) -> None:
    source = FakeSource(suspects=100, place={"kind": "fake", "url": "fake://", "name": "jobs"})
    policy = EnginePolicy(selection=RowSelection.ORDINARY)
    line = ParentChannel(parent.address)
    with Engine(source, lambda *_: None, policy=policy, parent=line, name="jobs"):
        assert MAX_SUSPECT_PROCESSES == parent.receive_about("suspects")["count"]
        source.wait_for_calls("exchange", 1)
    assert {RowSelection.ORDINARY} == {*source.selections}


@pytest.mark.parametrize(
    ("selection", "has_parent"), [(RowSelection.ANY, True), (RowSelection.ORDINARY, False)]
)
def test_nothing_is_counted_where_no_process_of_their_own_runs_them(
    parent: Parent, selection: RowSelection, *, has_parent: bool
) -> None:
    source = FakeSource(suspects=1)
    policy = EnginePolicy(selection=selection, sweep_interval=0.01)
    line = ParentChannel(parent.address) if has_parent else None
    with Engine(source, lambda *_: None, policy=policy, parent=line):
        source.wait_for_calls("sweep", 3)
    assert "count_suspects" not in source.calls


def test_messages_in_memory_and_those_without_a_parent_keep_their_suspects(
    database: SqliteDatabase, parent: Parent
) -> None:
    """No other process can run the first; the second run alone in theirs."""
    in_memory = GatedLoop(requests=open_mailbox(MemoryStore(), "jobs"))
    in_memory.attach(EngineEnvironment(name="jobs", parent=ParentChannel(parent.address)))
    by_itself = GatedLoop(requests=open_mailbox(database, "jobs"))
    for loop in (in_memory, by_itself):
        with running_loop(loop):
            wait_until(lambda: loop._engine is not None)  # noqa: B023 - within the iteration
            engine = loop._engine
            assert engine is not None
            assert RowSelection.ANY is engine.policy.selection


# --- a process of their own ---


def test_a_process_for_suspects_runs_one_at_a_time_of_all_its_loops_and_nothing_else(
    database: SqliteDatabase, parent: Parent
) -> None:
    """Then it ends by itself, and reports that it has finished."""
    first, second = open_mailbox(database, "first"), open_mailbox(database, "second")
    for mailbox in (first, second):
        mailbox.send("ordinary")
        for number in range(2):
            send_suspect(mailbox, f"{mailbox.name}-{number}")
    loops = [GatedLoop(requests=each, name=each.name, concurrency=4) for each in (first, second)]
    stub = StubLoop()
    begun = []
    with running_group(group_under(parent, *loops, stub, runs_suspects=True)) as running:
        for _ in range(4):
            wait_until(lambda: any(not loop.started.empty() for loop in loops))
            [busy] = [loop for loop in loops if not loop.started.empty()]
            request = busy.next_started().request
            begun.append(request)
            assert [] == [loop for loop in loops if not loop.started.empty()]
            busy.open(request)
        running.wait()
        assert "finished" == parent.receive_about("finished")["about"]
    assert ["first-0", "first-1", "second-0", "second-1"] == sorted(begun)
    assert [1, 1] == [mailbox.stats().ready for mailbox in (first, second)]
    assert [] == stub.run_settings


def test_an_engine_for_suspects_has_no_room_for_new_rows() -> None:
    policy = EnginePolicy(selection=RowSelection.SUSPECTS)
    with Engine(FakeSource(), lambda *_: None, policy=policy) as engine:
        assert engine.reserve(1) is None
