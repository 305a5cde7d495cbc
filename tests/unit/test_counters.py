from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Event, Level
from longwatch.core.events.engine import (
    ClaimSourceFailed,
    ClaimSourceRecovered,
    LeaseLost,
    LeasesRenewed,
    MessageDeadLettered,
    RowsClaimed,
    RowsSettled,
)
from longwatch.core.events.flow import AttemptsEnded, FlowSweepFinished
from longwatch.core.events.programs import (
    CircuitBreakerTripped,
    HealthCheckFailed,
    HealthCheckPassed,
    ProgramEnded,
    ProgramStarted,
)
from longwatch.core.events.runtime import LoopCrashed, LoopStalled, LoopStarted, ReplyFailed
from longwatch.core.events.workers import WorkerEventsDropped, WorkerStalled
from longwatch.observe.counters import EventCounters
from longwatch.observe.metric_families import ATTEMPT_BUCKETS, FAMILIES, HANDLE_BUCKETS, MetricKind
from longwatch.supervisor.probes import ProbeKind
from longwatch.workers.worker_record import WorkerRecord

DURATION = "longwatch_handle_duration_seconds"


NONE_SETTLED = RowsSettled(
    engine="mail", done=0, failed=0, released=0, dead_lettered=0, refused=0, durations=()
)


def settled(*lasted: float, **counts: Any) -> RowsSettled:
    return replace(NONE_SETTLED, durations=lasted, **counts)


def of_flow(event: RowsClaimed | RowsSettled) -> Event:
    """The same event about attempts to compute a node."""
    return replace(event, row_kind="computation")


def ended(*lasted: float, state: str = "success", cause: str = "done") -> AttemptsEnded:
    return AttemptsEnded(
        graph="scrape", node="pages", state=state, cause=cause, attempts=2, durations=lasted
    )


def swept(*, rows: int = 0, error: str = "") -> FlowSweepFinished:
    return FlowSweepFinished(sweep="stalled", seconds=0.2, rows=rows, error=error)


def of(*events: Event) -> dict[tuple[str, tuple[str, ...]], float | list[float]]:
    """What was counted, by name and labels."""
    tally = EventCounters()
    for event in events:
        tally(event)
    return {(sample.name, sample.labels): sample.value for sample in tally.samples()}


def counted(*events: Event) -> dict[str, float]:
    """The counters, as Prometheus spells them, without what is common to all of them."""
    return {
        f"{name.removeprefix('longwatch_').removesuffix('_total')}{{{','.join(labels)}}}": value
        for (name, labels), value in of(*events).items()
        if not isinstance(value, list)
    }


ENDED = ProgramEnded(
    program="web",
    pid=7,
    verdict="unexpected_exit",
    cause=EndCause.exit(1),
    lasted=1.0,
    restart=True,
    killed=0,
    survivors=0,
    detail="",
)
RULES: list[tuple[Event, dict[str, float]]] = [
    (RowsClaimed(engine="mail", rows=3, held=3), {"mailbox_received{mail}": 3}),
    (settled(done=4), {"mailbox_acked{mail}": 4}),
    (settled(failed=2), {"mailbox_nacked{mail}": 2}),
    (settled(released=5), {"mailbox_released{mail}": 5}),
    (settled(dead_lettered=1), {"mailbox_dead_lettered{mail}": 1}),
    (settled(refused=6), {"mailbox_stale_settlements{mail}": 6}),
    (
        settled(done=1, failed=2, refused=1),
        {"mailbox_acked{mail}": 1, "mailbox_nacked{mail}": 2, "mailbox_stale_settlements{mail}": 1},
    ),
    (of_flow(RowsClaimed(engine="nodes", rows=3, held=3)), {"flow_claimed{nodes}": 3}),
    (of_flow(settled(done=4, failed=3, dead_lettered=2)), {}),
    (of_flow(settled(released=5)), {"flow_released{mail}": 5}),
    (of_flow(settled(refused=6)), {"flow_stale_settlements{mail}": 6}),
    (ended(), {"flow_attempts{scrape,pages,success,done}": 2}),
    (
        ended(state="abandoned", cause="deadline"),
        {"flow_attempts{scrape,pages,abandoned,deadline}": 2},
    ),
    (swept(rows=7), {"flow_sweep_rows{stalled}": 7}),
    (swept(error="StoreError: gone"), {"flow_sweep_errors{stalled}": 1}),
    (swept(), {}),
    (LeasesRenewed(engine="mail", rows=9), {"leases_renewed{mail}": 9}),
    (
        LeaseLost(engine="mail", message_ids=("1", "2"), reason="stale"),
        {"leases_lost{mail,stale}": 2},
    ),
    (
        ClaimSourceFailed(engine="mail", call="renew", error="no", failures=1),
        {"claim_source_failures{mail}": 1},
    ),
    (
        LeaseLost(engine="mail", computations=("7/page",), reason="taken"),
        {"leases_lost{mail,taken}": 1},
    ),
    (
        MessageDeadLettered(mailbox="orders", message_id="1", reason="poison"),
        {"messages_dead_lettered{orders,poison}": 1},
    ),
    (
        ReplyFailed(loop="mail", request_id="1", message_id="2", error="no", retry_in=1.0),
        {"replies_failed{mail}": 1},
    ),
    (LoopCrashed(loop="mail", error="no"), {"loop_crashes{mail}": 1}),
    (LoopStalled(loop="mail", elapsed=2.0, threshold=1.0, stacks=""), {"watchdog_stalls{mail}": 1}),
    (
        WorkerStalled(
            program="web-1", pid=7, message_ids=("1",), elapsed=2.0, threshold=1.0, stacks=""
        ),
        {"worker_stalls{web-1}": 1},
    ),
    (WorkerEventsDropped(program="web-1", pid=7, count=5), {"relay_dropped{web-1}": 5}),
    (
        ProgramStarted(program="web", pid=7, command=("x",), start_number=1),
        {"program_starts{web}": 1},
    ),
    (ENDED, {"program_ends{web,unexpected_exit}": 1}),
    (
        HealthCheckFailed(
            program="web", pid=7, reason="no", failures=1, threshold=3, probe=ProbeKind.READINESS
        ),
        {"probe_failures{web,readiness}": 1},
    ),
    (
        CircuitBreakerTripped(program="web", restarts=6, window=60.0, reason="too often"),
        {"breaker_trips{web}": 1},
    ),
    (HealthCheckPassed(program="web", pid=7), {}),
    (LoopStarted(loop="mail"), {}),
    (ClaimSourceRecovered(engine="mail", call="renew", failures=1), {}),
]


@pytest.mark.parametrize(
    ("event", "expected"), RULES, ids=[f"{n}-{event.name}" for n, (event, _) in enumerate(RULES)]
)
def test_an_event_adds_to_its_counters_and_to_no_others(
    event: Event, expected: dict[str, float]
) -> None:
    assert expected == counted(event)
    assert {name: 2 * number for name, number in expected.items()} == counted(event, event)


def test_every_counter_of_the_catalogue_is_counted_by_some_event() -> None:
    """One that nobody counts is a promise that /metrics does not keep. CPU time is measured."""
    known = {name for name, family in FAMILIES.items() if family.kind is MetricKind.COUNTER}
    known.remove("longwatch_program_cpu_seconds_total")
    found = of(*(event for event, _ in RULES))
    assert known == {name for (name, _), value in found.items() if not isinstance(value, list)}


def test_what_is_counted_has_the_labels_that_the_catalogue_says() -> None:
    found = of(*(event for event, _ in RULES), settled(0.1, done=1), ended(0.1, 0.2))
    assert {name: len(FAMILIES[name].labels) for name, _ in found} == {
        name: len(labels) for name, labels in found
    }


def test_loops_are_counted_apart() -> None:
    found = counted(
        RowsClaimed(engine="a", rows=1, held=1), RowsClaimed(engine="b", rows=2, held=2)
    )
    assert {"mailbox_received{a}": 1, "mailbox_received{b}": 2} == found


# --- how long it took ---


def durations(*lasted: float) -> list[float]:
    found = of(settled(*lasted, done=len(lasted)))[DURATION, ("mail",)]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("place", range(len(HANDLE_BUCKETS)))
def test_a_duration_is_in_the_bucket_whose_bound_it_does_not_exceed(place: int) -> None:
    """Prometheus' `le`: the bound itself belongs to it."""
    bound = HANDLE_BUCKETS[place]
    for seconds, where in ((bound, place), (bound * 1.0001, place + 1)):
        *buckets, total = durations(seconds)
        assert [float(number == where) for number in range(len(HANDLE_BUCKETS) + 1)] == buckets
        assert seconds == total


def test_durations_of_several_exchanges_add_up() -> None:
    [found] = [
        value
        for value in of(settled(0.05, 2.0, done=2), settled(0.05, failed=1)).values()
        if isinstance(value, list)
    ]
    *buckets, total = found
    assert 3 == sum(buckets)
    assert pytest.approx(2.1) == total


def test_rows_that_were_never_begun_have_no_duration() -> None:
    assert [] == [name for name, _ in of(settled(released=3)) if name == DURATION]


def test_attempts_have_durations_of_their_own_and_none_among_those_of_messages() -> None:
    found = of(of_flow(settled(0.5, done=1)), ended(0.05, 20_000.0))
    *buckets, total = found.pop(("longwatch_flow_attempt_seconds", ("scrape", "pages")))  # type: ignore[misc]
    assert {1: 1.0, len(ATTEMPT_BUCKETS) - 1: 1.0} == {
        number: value for number, value in enumerate(buckets) if value
    }
    assert 20_000.05 == total
    assert [] == [name for name, _ in found if name.endswith("_seconds")]


def test_attempts_that_a_sweep_ended_have_no_duration() -> None:
    found = of(ended(state="abandoned", cause="crash"))
    assert ["longwatch_flow_attempts_total"] == [name for name, _ in found]


def test_the_duration_of_a_sweep_counts_whether_it_changed_rows_failed_or_neither() -> None:
    found = of(swept(), swept(rows=2), swept(error="no"))
    *buckets, total = found["longwatch_flow_sweep_seconds", ("stalled",)]  # type: ignore[misc]
    assert (3, pytest.approx(0.6)) == (sum(buckets), total)


# --- as values ---


def test_samples_are_of_one_moment() -> None:
    tally = EventCounters()
    tally(settled(0.5, done=1))
    before = tally.samples()
    tally(settled(0.5, done=1))
    assert [1, [0.5]] == [
        sample.value if not isinstance(sample.value, list) else sample.value[-1:]
        for sample in before
    ]


def test_nothing_is_lost_between_threads() -> None:
    tally = EventCounters()
    event = settled(0.1, done=1)

    def count() -> None:
        for _ in range(2000):
            tally(event)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = {sample.name: sample.value for sample in tally.samples()}
    assert 8000 == values["longwatch_mailbox_acked_total"]
    buckets = values[DURATION]
    assert isinstance(buckets, list)
    assert 8000 == sum(buckets[:-1])


def test_what_a_worker_tells_its_parent_arrives_as_it_was_sent() -> None:
    tally = EventCounters()
    for event, _ in RULES:
        tally(event)
    tally(settled(0.2, 7.0, done=2))
    told = json.loads(json.dumps({"ready": True, "samples": tally.samples()}))
    assert tally.samples() == WorkerRecord(7, "web").record_state(told, 0.0)


def test_an_event_of_a_kind_that_nobody_counts_is_nothing() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Unknown(Event):
        default_level: ClassVar[Level] = Level.INFO
        engine: str = "mail"

    assert {} == of(Unknown())
