from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flow_stores import KINDS, opened_store
from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import GivenUp, RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation, boot_id
from longwatch.mailbox.records import new_id
from longwatch.runner.run_end import EventOutcome, RunEnd, RunSettlement, RunStatus
from longwatch.runner.run_retention import BATCH, remove_old_runs
from longwatch.runner.run_store import CANCEL_CHANNEL, CancelledEventError, NewRun, RunStore
from longwatch.runner.workspace import Artifact, Workspace
from longwatch.store.claims import Claim
from longwatch.store.database import Database
from polling import eventually
from runner_rig import Queue

DAY = 86_400.0
ENDED = RunEnd(
    status=RunStatus.FAILURE,
    cause="exit 3",
    duration=1.5,
    error="no",
    output="--- stdout\nhello\n",
    artifacts=(Artifact("output/a", 7),),
    cpu_seconds=0.25,
    max_rss=4096,
)


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


class ClaimedEvent:
    """A queued event that is claimed, and its runs."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.queue = Queue(database)
        self.store = RunStore(database)
        self.id = self.queue.put("pass")
        self.backend = self.queue.backend("alpha")
        self.owner = self.backend.register_owner(Incarnation.current())
        self.claim = self.claim_again()

    def claim_again(self) -> Claim:
        result = self.backend.exchange([], owner=self.owner, limit=1, lease_seconds=60.0)
        [row] = result.claimed
        return row.claim

    def begin(self, claim: Claim | None = None) -> str:
        """The id of a run that has begun; empty if it was refused."""
        found = self.store.find_event(self.id)
        assert found is not None
        run = NewRun(
            id=new_id(), event=self.id, source="alpha", attempt=found.runs + 1, workspace="/w"
        )
        return run.id if self.store.begin(run, claim or self.claim) else ""

    def settle(self, run_id: str, settlement: Settlement, outcome: EventOutcome | None) -> bool:
        """Settle message, run and event in one transaction, as a claim source does."""
        decided = RunSettlement(event=self.id, run=run_id, end=ENDED, outcome=outcome, reason="why")
        return self.settle_as(settlement, decided)

    def settle_as(self, settlement: Settlement, decided: RunSettlement) -> bool:
        settlement = settlement._replace(result=msgspec.json.encode(decided))

        def work(tx: object) -> bool:
            [is_settled] = self.backend.settle([settlement], tx=tx)
            self.store.settle(tx, [(settlement, is_settled)])  # type: ignore[arg-type]
            return is_settled

        return self.database.write(work)


@pytest.fixture
def event(database: Database) -> ClaimedEvent:
    return ClaimedEvent(database)


def test_a_run_is_open_until_it_is_settled_with_its_message(event: ClaimedEvent) -> None:
    """The end of the run, the message and the outcome of the event are one transaction."""
    run_id = event.begin()
    event.store.record_pid(run_id, pid=77, start=1234)
    [running] = event.store.runs(status="running")
    assert (run_id, event.id, 1, "running", None) == (
        running.id,
        running.event,
        running.attempt,
        running.status,
        running.ended_at,
    )
    assert event.settle(run_id, Settlement(event.claim, RowOutcome.DONE), EventOutcome.RUN)
    run = event.store.run(run_id)
    assert run is not None
    assert (run.status, run.cause, run.error, run.output) == (
        "failure",
        "exit 3",
        "no",
        "--- stdout\nhello\n",
    )
    assert run.artifacts == (Artifact("output/a", 7),)
    assert (run.cpu_seconds, run.max_rss, run.pid) == (0.25, 4096, 77)
    assert run.ended_at is not None
    assert run.ended_at - run.started_at == pytest.approx(1.5)
    assert ("run", "why") == event.queue.outcome(event.id)
    assert 0 == event.queue.stats().leased


def test_a_run_does_not_begin_without_the_claim(event: ClaimedEvent) -> None:
    """A run whose lease was lost between claim and start never starts."""
    stale = event.claim._replace(term=event.claim.term - 1)
    assert not event.begin(stale)
    assert [] == event.store.runs()


def test_a_refused_settlement_ends_the_run_as_lost(event: ClaimedEvent) -> None:
    """The event is another runner's by then, and gets no outcome from this run."""
    run_id = event.begin()
    event.backend.settle([Settlement(event.claim, RowOutcome.RELEASED)])
    assert not event.settle(run_id, Settlement(event.claim, RowOutcome.DONE), EventOutcome.RUN)
    assert [("cancelled", "lease_lost")] == event.queue.causes(event.id)
    assert (None, "") == event.queue.outcome(event.id)


def test_the_next_run_of_an_event_ends_those_left_open(event: ClaimedEvent) -> None:
    """Two runs of one event are never open at once."""
    event.begin()
    event.backend.settle([Settlement(event.claim, RowOutcome.RELEASED)])
    event.begin(event.claim_again())
    assert [("cancelled", "lease_lost"), ("running", None)] == event.queue.causes(event.id)
    assert [1, 2] == [run.attempt for run in event.queue.of(event.id)]


def test_an_event_that_is_given_up_has_its_outcome(event: ClaimedEvent) -> None:
    """A mailbox that gives up a message dead-letters the event and ends its open run."""
    event.begin()
    given_up = GivenUp(event.id, "runner/alpha", "poison")
    event.database.write(lambda tx: event.store.give_up(tx, [given_up]))
    assert [("cancelled", "lease_lost")] == event.queue.causes(event.id)
    assert ("dead-lettered", "poison") == event.queue.outcome(event.id)


def test_an_outcome_is_written_once(event: ClaimedEvent) -> None:
    """The first outcome stays."""
    run_id = event.begin()
    event.settle(run_id, Settlement(event.claim, RowOutcome.DONE), EventOutcome.RUN)
    given_up = GivenUp(event.id, "runner/alpha", "poison")
    event.database.write(lambda tx: event.store.give_up(tx, [given_up]))
    assert ("run", "why") == event.queue.outcome(event.id)
    assert [("failure", "exit 3")] == event.queue.causes(event.id)


def test_a_sweep_ends_runs_whose_lease_is_gone(event: ClaimedEvent) -> None:
    """A run whose message is leased to its runner is left alone."""
    event.begin()
    assert 0 == event.store.end_lost_runs()
    event.backend.settle([Settlement(event.claim, RowOutcome.RELEASED)])
    assert 1 == event.store.end_lost_runs()
    assert [("cancelled", "lease_lost")] == event.queue.causes(event.id)
    assert 0 == event.store.end_lost_runs()


def test_a_cancel_request_reaches_whoever_listens(event: ClaimedEvent) -> None:
    """It is stored with the run, and notified; a run that has ended takes none."""
    wakeup = Wakeup()
    stop = event.database.listen(CANCEL_CHANNEL, wakeup)
    run_id = event.begin()
    try:
        assert event.store.request_cancel(run_id)
        assert eventually(wakeup.is_set)
    finally:
        stop()
    assert [run_id] == event.store.cancel_requests()
    event.settle(run_id, Settlement(event.claim, RowOutcome.DONE), EventOutcome.RUN)
    assert [] == event.store.cancel_requests()
    assert not event.store.request_cancel(run_id)
    assert not event.store.request_cancel("nosuchrun")


def test_a_start_cancels_what_its_dead_runner_was_asked_to(event: ClaimedEvent) -> None:
    """The message that the dead runner has left leased is dead-lettered with the end of the run."""
    run_id = event.begin()
    assert event.store.request_cancel(run_id)
    assert event.store.end_lost(run_id)
    _check_cancelled(event)
    assert not event.store.end_lost(run_id)


def test_a_sweep_cancels_a_run_that_was_lost(event: ClaimedEvent) -> None:
    """Its event waits again by then, and is not run."""
    run_id = event.begin()
    event.backend.settle([Settlement(event.claim, RowOutcome.RELEASED)])
    assert event.store.request_cancel(run_id)
    assert 1 == event.store.end_lost_runs()
    _check_cancelled(event)
    assert 0 == event.store.end_lost_runs()


def test_no_run_begins_after_a_cancel_of_the_last(event: ClaimedEvent) -> None:
    """The request stays with its open run until the claimant of the event settles it."""
    run_id = event.begin()
    event.backend.settle([Settlement(event.claim, RowOutcome.RELEASED)])
    claim = _claim_for_another(event)
    assert event.store.request_cancel(run_id)
    assert not event.store.end_lost(run_id)
    assert 0 == event.store.end_lost_runs()
    with pytest.raises(CancelledEventError):
        event.begin(claim)
    dead = Settlement(claim, RowOutcome.DEAD, reason="cancelled")
    decided = RunSettlement(event=event.id, outcome=EventOutcome.DEAD_LETTERED, reason="cancelled")
    assert event.settle_as(dead, decided)
    _check_cancelled(event)


@pytest.mark.parametrize("outcome", [RowOutcome.FAILED, RowOutcome.RELEASED, RowOutcome.CRASHED])
def test_a_run_that_ends_before_its_cancel_arrives_is_the_last(
    event: ClaimedEvent, outcome: RowOutcome
) -> None:
    """The run keeps its own end; its event is not queued again."""
    run_id = event.begin()
    assert event.store.request_cancel(run_id)
    assert event.settle(run_id, Settlement(event.claim, outcome), None)
    assert [("failure", "exit 3")] == event.queue.causes(event.id)
    _check_dead_letter(event)


def test_an_event_that_was_cancelled_can_be_replayed(event: ClaimedEvent) -> None:
    """The request is spent with the run that it was about."""
    run_id = event.begin()
    assert event.store.request_cancel(run_id)
    assert event.store.end_lost(run_id)
    assert [True] == event.backend.replay([event.id])
    assert not event.store.end_lost(run_id)
    assert 0 == event.store.end_lost_runs()
    assert event.begin(event.claim_again())


def test_a_run_without_a_message_is_cancelled(event: ClaimedEvent) -> None:
    """A purge of the mailbox leaves no event to end."""
    run_id = event.begin()
    assert event.store.request_cancel(run_id)
    event.database.write(lambda tx: tx.execute("DELETE FROM longwatch_messages"))
    assert 1 == event.store.end_lost_runs()
    assert [("cancelled", "cancelled")] == event.queue.causes(event.id)


def _claim_for_another(event: ClaimedEvent) -> Claim:
    owner = event.backend.register_owner(Incarnation.current())
    [row] = event.backend.exchange([], owner=owner, limit=1, lease_seconds=60.0).claimed
    return row.claim


def _check_cancelled(event: ClaimedEvent) -> None:
    assert [("cancelled", "cancelled")] == event.queue.causes(event.id)
    _check_dead_letter(event)


def _check_dead_letter(event: ClaimedEvent) -> None:
    assert ("dead-lettered", "cancelled") == event.queue.outcome(event.id)
    [letter] = event.queue.dead_letters()
    assert (event.id, "cancelled") == (letter.id, letter.reason)
    stats = event.queue.stats()
    assert 0 == stats.ready + stats.delayed + stats.leased


def test_open_runs_name_their_runner(event: ClaimedEvent) -> None:
    """Only runs of this boot are listed; a runner whose owner row is deleted is unknown."""
    run_id = event.begin()
    event.store.record_pid(run_id, pid=77, start=1234)
    [run] = event.store.open_runs()
    assert (run_id, "alpha", 77, 1234) == run[:4]
    assert run.incarnation is not None
    assert not run.incarnation.is_dead()
    event.database.write(lambda tx: tx.execute("DELETE FROM longwatch_owners"))
    assert event.store.open_runs()[0].incarnation is None
    event.database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_runner_runs SET boot = :boot", {"boot": f"not-{boot_id()}"}
        )
    )
    assert [] == event.store.open_runs()


def test_runs_are_found_by_source_event_and_status(event: ClaimedEvent) -> None:
    """The newest first."""
    first = event.begin()
    event.backend.settle([Settlement(event.claim, RowOutcome.RELEASED)])
    second = event.begin(event.claim_again())
    assert [second, first] == [run.id for run in event.store.runs()]
    assert [second] == [run.id for run in event.store.runs(limit=1)]
    assert [first] == [run.id for run in event.store.runs(status="cancelled", source="alpha")]
    assert [] == event.store.runs(source="beta")
    assert [] == event.store.runs(event="another")
    assert event.store.run("nosuchrun") is None
    assert event.store.find_event("nosuchevent") is None


def test_old_runs_go_with_their_workspaces(event: ClaimedEvent, tmp_path: Path) -> None:
    """Only ended runs that are older than the retention, and only directories that a run names and
    that are below the root.
    """
    root = tmp_path / "runs"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    old = [_ended_run(event, root, age=20 * DAY) for _ in range(BATCH + 2)]
    young = _ended_run(event, root, age=10 * DAY)
    moved = _ended_run(event, root, age=20 * DAY, workspace=str(elsewhere))
    unnamed = Workspace.create(root, "unnamed", event=b"", prompt=None)
    open_run = event.begin()
    _set_age(event, open_run, 20 * DAY)
    assert BATCH + 3 == remove_old_runs(event.store, root, retention=14 * DAY)
    assert sorted([open_run, young]) == sorted(run.id for run in event.store.runs())
    assert sorted([young, unnamed.path.name]) == sorted(path.name for path in root.iterdir())
    assert elsewhere.is_dir()
    assert {*old, moved}.isdisjoint(run.id for run in event.store.runs())


def _ended_run(event: ClaimedEvent, root: Path, *, age: float, workspace: str = "") -> str:
    run_id = new_id()
    made = Workspace.create(root, run_id, event=b"{}", prompt=None)
    if workspace:
        made.remove()
    run = NewRun(
        id=run_id, event=event.id, source="alpha", attempt=1, workspace=workspace or str(made.path)
    )
    assert event.store.begin(run, event.claim)
    event.store.end(run_id, ENDED)
    _set_age(event, run_id, age)
    return run_id


def _set_age(event: ClaimedEvent, run_id: str, age: float) -> None:
    event.database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_runner_runs SET started_at = started_at - :age WHERE id = :id",
            {"age": age, "id": run_id},
        )
    )
