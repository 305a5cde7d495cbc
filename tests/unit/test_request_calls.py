"""What the handling of one message costs a loop, beyond its handler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext, SlotActivity
from longwatch.engine.policy import EnginePolicy
from longwatch.host.beatpage import BeatPage
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.records import MessageRecord
from longwatch.runtime import MainLoopContext
from longwatch.runtime.request import OutputCheck, RequestDecoder
from longwatch.runtime.request_runner import RequestRunner
from longwatch.store.claims import Claim

MESSAGE = MessageRecord(
    "id",
    b"7",
    deliveries=1,
    failures=0,
    crashes=0,
    enqueued_at=0.0,
    reply_to=None,
    headers='{"tenant":"acme"}',
)
ROW = ClaimedRow(Claim(7, 1, 42), MESSAGE, failures_left=5)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RowContext]:
    clock, page = SystemClock(), BeatPage(tmp_path / "page", 1)
    yield RowContext(ROW, SlotActivity(clock, page, 0), Deadline.never(clock), started_at=0.0)
    page.close()


@contextmanager
def recorded_calls() -> Iterator[list[str]]:
    """The names of the functions that this thread calls, and of the generators it resumes."""
    names = list[str]()

    def record(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_qualname)

    sys.setprofile(record)
    try:
        yield names
    finally:
        sys.setprofile(None)


def test_a_message_without_deadline_and_reply_is_handled_in_few_calls(context: RowContext) -> None:
    """They decide how fast one process drains a mailbox of short messages."""
    seen = list[MainLoopContext]()
    runner = RequestRunner(
        lambda _, given: seen.append(given),
        RequestDecoder(int),
        OutputCheck(Any),
        requests=open_mailbox("memory://", "a", int),
        responses=None,
        retry=EnginePolicy().retry,
        name="loop",
        clock=SystemClock(),
        events=Events(),
    )
    runner(ROW, context)  # fills the caches of isinstance
    with recorded_calls() as calls:
        settlement = runner(ROW, context)
    assert Settlement(ROW.claim, RowOutcome.DONE) == settlement
    assert len(calls) <= 20, calls
    assert {"tenant": "acme"} == seen[1].headers
