"""PostgreSQL and Redis fail in every way that they are known to, with work in flight: the actors
come back without a restart, and no message is lost, settled twice, or condemned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chaos_plan import ChaosPlan
from fault_postgres import postgres_target
from fault_reckoning import Watcher, table
from fault_redis import redis_target
from fault_run import GROUPS, TARGETS, played
from fault_stage import Fault, Outcome, Stage
from longwatch.errors import MailboxConnectionError, ReceiptHandleExpiredError, StoreError

IMPATIENT_URLS = {"postgresql": "{}", "redis": "{}?socket_timeout=2"}
LOOKS: dict[str, Callable[[Any], object]] = {
    "postgresql": lambda mailbox: mailbox.backend.database.read(
        lambda tx: tx.rows("SELECT 1"), timeout=2.0
    ),
    "redis": lambda mailbox: mailbox.stats(),
}


@pytest.mark.chaos
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_faults_of_the_server_lose_nothing_double_nothing_condemn_nothing_and_need_no_restart(
    kind: str, group: str, tmp_path: Path, chaos: ChaosPlan
) -> None:
    with played(kind, group, tmp_path, chaos) as (stage, watcher):
        told = f"{kind}, {group}, seed {chaos.seed}, drained after {stage.drained_after:.1f} s"
        sys.stdout.write(f"\n{told}\n{table(stage.reckoned())}\n")
        require_the_promise(stage)
        assert [] == watcher.dead()


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_a_receipt_from_before_an_older_state_was_restored_settles_no_message_that_got_its_number(
    kind: str,
) -> None:
    """The server gives the same numbers again, the same process receives, it is the first delivery
    each time: all but the message is alike.
    """
    with TARGETS[kind]() as target, Watcher(target.url) as watcher:
        kept, restored = target.older_state()
        mailbox = watcher.mailbox
        mailbox.send("before")
        [before] = mailbox.receive()
        before.acknowledge()
        with kept.strike():
            pass
        mailbox.send("forgotten")
        [forgotten] = mailbox.receive()
        with restored.strike():
            pass
        mailbox.send("after")
        [after] = mailbox.receive(wait_time_seconds=5)
        assert "after" == after.body
        with pytest.raises(ReceiptHandleExpiredError):
            forgotten.acknowledge()
        after.acknowledge()
        assert 0 == mailbox.approximate_count()


def test_redis_after_a_failover_is_written_to_where_its_address_leads_now() -> None:
    """The connections to the old master are alive, and as read-only as that is."""
    with redis_target() as target, Watcher(target.proxied_url) as watcher:
        watcher.mailbox.send("before")
        with target.failed_over():
            with pytest.raises(MailboxConnectionError, match="read-only replica"):
                watcher.mailbox.send("refused")
            watcher.mailbox.send("after")
            assert ["before", "after"] == [
                message.body for message in watcher.mailbox.receive(max_messages=5)
            ]


def test_postgresql_that_is_not_read_only_any_more_is_written_to_at_once() -> None:
    """The connections from that time are alive, and stay read-only."""
    with postgres_target() as target, Watcher(target.url) as watcher:
        watcher.mailbox.send("before")
        with target.read_only():
            with pytest.raises(MailboxConnectionError, match="is read-only"):
                watcher.mailbox.send("refused")
            watcher.mailbox.approximate_count()  # made meanwhile, and kept
        watcher.mailbox.send("after")
        assert ["before", "after"] == [
            message.body for message in watcher.mailbox.receive(max_messages=5)
        ]


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_of_several_connections_that_are_silent_for_good_only_one_is_waited_for(kind: str) -> None:
    with (
        TARGETS[kind]() as target,
        Watcher(IMPATIENT_URLS[kind].format(target.proxied_url)) as watcher,
    ):
        look = partial(LOOKS[kind], watcher.mailbox)
        look()
        target.proxy.pass_on(delay=0.05)
        with ThreadPoolExecutor(4) as threads:
            for looking in [threads.submit(look) for _ in range(4)]:
                looking.result()
        assert target.proxy.connections >= 4
        target.proxy.swallow()
        target.proxy.pass_on()
        with suppress(MailboxConnectionError, StoreError):
            look()
        look()


def test_the_reckoning_finds_what_is_lost_or_doubled_and_leaves_out_what_the_server_forgot(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, ["produce", "work"], [{"FAULT_URL": ""}] * 2, ["true"])
    producer, worker = stage.players
    stage.close()
    for player, lines in (
        (producer, ["intend 1", "sent 1"]),
        (worker, ["ran 1", "acked 1", "acked 1"]),
    ):
        player.journal.write_text("\n".join([*lines, ""]))
    forgotten = producer.place
    stage.outcomes.append(
        Outcome(
            Fault("first", nullcontext),
            dict.fromkeys(stage.players, 0),
            ends=dict.fromkeys(stage.players, 0),
        )
    )
    with producer.journal.open("a") as file:
        file.write("intend 2\nsent 2\nintend 3\nfailed 3\n")
    assert [(2, 1, 1)] == [(line.sent, line.lost, line.doubled) for line in stage.reckoned()]
    producer.forgotten.append((forgotten, producer.place))
    assert [(1, 0, 1)] == [(line.sent, line.lost, line.doubled) for line in stage.reckoned()]


def require_the_promise(stage: Stage) -> None:
    lines = stage.reckoned()
    assert ([], []) == (stage.ended(), stage.complaints())
    assert [] == [line for line in lines if line.lost], "lost"
    assert [] == [line for line in lines if line.doubled], "settled twice"
    forgotten = {outcome.fault.name for outcome in stage.outcomes if outcome.fault.keeps_state}
    assert [] == [line for line in lines if not line.sent and line.fault not in forgotten], (
        "nothing was sent"
    )
    felt = {outcome.fault.name for outcome in stage.outcomes if outcome.fault.is_felt}
    assert [] == [line for line in lines if line.fault in felt and not line.failed], (
        "nobody has felt it"
    )
    longest = max(outcome.lasted + outcome.recovered_after for outcome in stage.outcomes)
    assert [] == [line for line in lines if line.failures > 10 + 3 * longest], (
        "tried again and again, without a pause"
    )
