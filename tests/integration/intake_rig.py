"""A runner's intake over a store, for tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Event, Events
from longwatch.core.events.runner import StreamEventsTaken
from longwatch.mailbox.sql import SqlBackend
from longwatch.runner.event_store import EventStore
from longwatch.runner.intake import Intake
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.seams import StreamItem
from longwatch.store.database import Database


def item(
    n: int, *, severity: str = "error", fault: str | None = None, **more: object
) -> StreamItem:
    """Event number n of a stream; by default of a fault of its own."""
    fields = {"severity": severity, "resource": "pod", "faultId": fault or f"f{n}", **more}
    return StreamItem(json.dumps(fields), str(n))


def items(*numbers: int) -> list[StreamItem]:
    return [item(n) for n in numbers]


class IntakeRig:
    """An intake, its leases, and what they have emitted."""

    def __init__(
        self, database: Database, *names: str, policy: RunnerPolicy | None = None, **options: Any
    ) -> None:
        self.database = database
        self.emitted: list[Event] = []
        self.events = Events(self.emitted.append)
        self.policy = policy or RunnerPolicy()
        self.specs = [
            SourceSpec(name=name, url="http://localhost/", enabled=not name.startswith("disabled"))
            for name in names or ("eu",)
        ]
        self.intake = Intake(
            database, self.specs, self.policy, clock=SystemClock(), events=self.events, **options
        )
        self.store = EventStore(database)

    def take(self, batch: Sequence[StreamItem], *, source: str = "eu", cursor: str = "") -> None:
        last = batch[-1].id if batch else None
        self.intake.take_now(source, batch, cursor=cursor or last or "")

    def mailbox(self, source: str = "eu") -> SqlBackend:
        return SqlBackend(self.database, f"runner/{source}")

    def queued(self, source: str = "eu") -> list[str]:
        """The stream ids of the events that wait, oldest first."""
        ids = {event.id: str(event.stream_id) for event in self.store.events(limit=10_000)}
        return [ids[message.id] for message in self.mailbox(source).peek(limit=10_000)]

    def outcomes(self, source: str = "eu") -> dict[str, str]:
        """The outcome and reason of each event by its stream id."""
        return {
            str(event.stream_id): " ".join(filter(None, [event.outcome or "open", event.reason]))
            for event in self.store.events(source=source, limit=10_000)
        }

    def dead(self, source: str = "eu") -> list[tuple[str, bytes]]:
        return [(each.reason, each.body) for each in self.mailbox(source).dead_letters()]

    def counts(self) -> dict[str, Counter[str]]:
        """The counters of what was taken, summed."""
        total: dict[str, Counter[str]] = {
            name: Counter() for name in ("received", "filtered", "dropped")
        }
        totals = Counter[str]()
        for event in self.emitted:
            if isinstance(event, StreamEventsTaken):
                for name, counter in total.items():
                    values: Mapping[str, int] = getattr(event, name)
                    counter.update(values)
                totals.update(queued=event.queued, breaker_dropped=event.breaker_dropped)
        return {**total, "totals": +totals}

    def rows(self, table: str) -> int:
        return int(self.database.read(lambda tx: tx.rows(f"SELECT count(*) FROM {table}"))[0][0])


@contextmanager
def running_intake(database: Database, *names: str, **options: Any) -> Iterator[IntakeRig]:
    """An intake that holds its sources."""
    rig = IntakeRig(database, *names, **options)
    rig.intake.leases.renew()
    try:
        yield rig
    finally:
        rig.intake.leases.release()
        rig.intake.close()
