"""PostgreSQL and Redis fail in every way that they are known to, with work in flight: the clients
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
from fault_harness import Fault, FaultHarness, FaultResult, MailboxWatcher, report_table
from fault_postgres import postgres_faults
from fault_redis import redis_faults
from fault_run import GROUPS, SERVERS, run_faults
from longwatch.errors import MailboxConnectionError, ReceiptHandleExpiredError, StoreError
from polling import eventually

IMPATIENT_URLS = {"postgresql": "{}", "redis": "{}?socket_timeout=2"}
LOOKS: dict[str, Callable[[Any], object]] = {
    "postgresql": lambda mailbox: mailbox.backend.database.read(
        lambda tx: tx.rows("SELECT 1"), timeout=2.0
    ),
    "redis": lambda mailbox: mailbox.stats(),
}


@pytest.mark.chaos
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", sorted(SERVERS))
def test_faults_of_the_server_lose_nothing_double_nothing_condemn_nothing_and_need_no_restart(
    kind: str, group: str, tmp_path: Path, chaos: ChaosPlan
) -> None:
    with run_faults(kind, group, tmp_path, chaos) as (harness, watcher):
        title = f"{kind}, {group}, seed {chaos.seed}, drained after {harness.drained_after:.1f} s"
        sys.stdout.write(f"\n{title}\n{report_table(harness.reports())}\n")
        expect_no_loss(harness)
        assert [] == watcher.dead_letters()


@pytest.mark.parametrize("kind", sorted(SERVERS))
def test_a_receipt_from_before_an_older_state_was_restored_settles_no_message_that_got_its_number(
    kind: str,
) -> None:
    """The server gives the same numbers again, the same process receives, it is the first delivery
    each time: all but the message is alike.
    """
    with SERVERS[kind]() as server, MailboxWatcher(server.url) as watcher:
        kept, restored = server.older_state()
        mailbox = watcher.mailbox
        mailbox.send("before")
        [before] = mailbox.receive()
        before.acknowledge()
        with kept.inject():
            pass
        mailbox.send("forgotten")
        [forgotten] = mailbox.receive()
        with restored.inject():
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
    with redis_faults() as server, MailboxWatcher(server.proxied_url) as watcher:
        watcher.mailbox.send("before")
        with server.failed_over():
            with pytest.raises(MailboxConnectionError, match="read-only replica"):
                watcher.mailbox.send("refused")
            watcher.mailbox.send("after")
            assert ["before", "after"] == [
                message.body for message in watcher.mailbox.receive(max_messages=5)
            ]


def test_postgresql_that_is_not_read_only_any_more_is_written_to_at_once() -> None:
    """The connections from that time are alive, and stay read-only."""
    with postgres_faults() as server, MailboxWatcher(server.url) as watcher:
        watcher.mailbox.send("before")
        with server.read_only():
            with pytest.raises(MailboxConnectionError, match="is read-only"):
                watcher.mailbox.send("refused")
            watcher.mailbox.approximate_count()  # made meanwhile, and kept
        watcher.mailbox.send("after")
        assert ["before", "after"] == [
            message.body for message in watcher.mailbox.receive(max_messages=5)
        ]


@pytest.mark.parametrize("kind", sorted(SERVERS))
def test_of_several_connections_that_are_silent_for_good_only_one_is_waited_for(kind: str) -> None:
    with (
        SERVERS[kind]() as server,
        MailboxWatcher(IMPATIENT_URLS[kind].format(server.proxied_url)) as watcher,
    ):
        look = partial(LOOKS[kind], watcher.mailbox)
        look()
        server.proxy.forward(delay=0.05)

        def has_several() -> bool:
            """A look waits a moment for a connection in use before it makes another one."""
            with ThreadPoolExecutor(4) as threads:
                for looking in [threads.submit(look) for _ in range(4)]:
                    looking.result()
            return bool(server.proxy.connections >= 4)

        assert eventually(has_several)
        server.proxy.blackhole()
        server.proxy.forward()
        with suppress(MailboxConnectionError, StoreError):
            look()
        look()


def test_the_report_finds_what_is_lost_or_doubled_and_leaves_out_what_the_server_forgot(
    tmp_path: Path,
) -> None:
    harness = FaultHarness(tmp_path, ["produce", "work"], [{"FAULT_URL": ""}] * 2, ["true"])
    producer, worker = harness.clients
    harness.close()
    for client, lines in (
        (producer, ["intend 1", "sent 1"]),
        (worker, ["ran 1", "acked 1", "acked 1"]),
    ):
        client.journal.write_text("\n".join([*lines, ""]))
    forgotten = producer.position
    harness.results.append(
        FaultResult(
            Fault("first", nullcontext),
            dict.fromkeys(harness.clients, 0),
            end_positions=dict.fromkeys(harness.clients, 0),
        )
    )
    with producer.journal.open("a") as file:
        file.write("intend 2\nsent 2\nintend 3\nfailed 3\n")
    assert [(2, 1, 1)] == [(line.sent, line.lost, line.duplicated) for line in harness.reports()]
    producer.discarded.append((forgotten, producer.position))
    assert [(1, 0, 1)] == [(line.sent, line.lost, line.duplicated) for line in harness.reports()]


def expect_no_loss(harness: FaultHarness) -> None:
    lines = harness.reports()
    assert ([], []) == (harness.exited_clients(), harness.stderr_texts())
    assert [] == [line for line in lines if line.lost], "lost"
    assert [] == [line for line in lines if line.duplicated], "settled twice"
    forgotten = {result.fault.name for result in harness.results if result.fault.saves_state}
    assert [] == [line for line in lines if not line.sent and line.fault not in forgotten], (
        "nothing was sent"
    )
    felt = {result.fault.name for result in harness.results if result.fault.fails_calls}
    assert [] == [line for line in lines if line.fault in felt and not line.failed_calls], (
        "nobody has felt it"
    )
    longest = max(result.duration + result.recovered_after for result in harness.results)
    limit = 10 + 3 * longest
    assert [] == [
        line for line in lines if any(each > limit for each in line.failures_in_a_row.values())
    ], "tried again and again, without a pause"
