"""The recent events of a state directory, from its log: bounded, and counted by hour."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

from longwatch.page.history import HOUR, HOURS, MAX_RECORDS, EventHistory


def line(event: str, *, at: float | None = None, **fields: object) -> str:
    moment = datetime.fromtimestamp(time.time() if at is None else at, UTC)
    record = {"ts": moment.isoformat().replace("+00:00", "Z"), "level": "info", "event": event}
    return json.dumps({**record, **fields}) + "\n"


def log_of(state: Path) -> Path:
    (state / "logs").mkdir(exist_ok=True)
    return state / "logs" / "watchdog.log"


def names(history: EventHistory, **filters: str) -> list[str]:
    return [str(record["event"]) for record in history.records(**filters)]


def test_new_records_follow_those_that_were_there(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.write_text(line("one") + line("two"))
    history = EventHistory(tmp_path)
    assert history.refresh()
    with log.open("a") as file:
        file.write(line("three") + "no JSON\n" + line("four")[:10])

    assert history.refresh()
    assert not history.refresh()
    assert ["three", "two", "one"] == names(history)
    history.close()


def test_a_log_that_comes_later_and_a_rotation_are_followed(tmp_path: Path) -> None:
    history = EventHistory(tmp_path)
    history.refresh()
    log = log_of(tmp_path)
    log.write_text(line("one"))
    history.refresh()
    log.rename(log.with_name("watchdog.log.1"))
    log.write_text(line("two"))
    history.refresh()

    assert ["two", "one"] == names(history)
    history.close()


def test_records_are_filtered_by_program_level_and_name(tmp_path: Path) -> None:
    log_of(tmp_path).write_text(
        line("a", program="web")
        + line("b", program="web", level="warning")
        + line("c", program="other", level="critical")
        + line("d", programs=["web", "x"])
        + line("e", level="debug", program="web")
    )
    history = EventHistory(tmp_path)
    history.refresh()

    assert ["d", "b", "a"] == names(history, program="web")
    assert ["c", "b"] == names(history, level="warning")
    assert ["e", "d", "c", "b", "a"] == names(history, level="debug")
    assert ["b"] == names(history, text="b")
    history.close()


def test_only_the_newest_records_are_kept_but_all_of_the_day_are_counted(tmp_path: Path) -> None:
    log_of(tmp_path).write_text(
        "".join(line("restart_scheduled", program="web", n=n) for n in range(MAX_RECORDS + 100))
    )
    history = EventHistory(tmp_path)
    history.refresh()

    assert MAX_RECORDS == len(history.records())
    assert MAX_RECORDS + 99 == history.records()[0]["n"]
    assert MAX_RECORDS + 100 == history.hours()[-1][1].restarts["web"] or (
        MAX_RECORDS + 100 == sum(count.restarts["web"] for _, count in history.hours())
    )
    history.close()


def test_restarts_and_failures_are_counted_by_hour(tmp_path: Path) -> None:
    now = (time.time() // HOUR) * HOUR + 1800
    log_of(tmp_path).write_text(
        line("restart_scheduled", program="web", at=now - 30 * HOUR)
        + line("restart_scheduled", program="web", at=now - 2 * HOUR)
        + line("unexpected_exit", program="web", verdict="unexpected_exit", at=now - 2 * HOUR)
        + line("clean_exit", program="web", verdict="clean_exit", at=now)
        + line("configuration_error", program="x", verdict="configuration_error", at=now)
    )
    history = EventHistory(tmp_path)
    history.refresh()
    hours = history.hours(now)

    assert HOURS == len(hours)
    assert {"web": 1} == hours[-3][1].restarts == hours[-3][1].failures
    assert {"x": 1} == hours[-1][1].failures
    assert 1 == sum(count.restarts.total() for _, count in hours)
    history.close()


def test_without_a_state_directory_there_is_no_history() -> None:
    history = EventHistory(None)

    assert history.is_read
    assert not history.refresh()
    assert [] == history.records()


def test_a_damaged_record_does_not_end_the_reading(tmp_path: Path) -> None:
    log_of(tmp_path).write_text("")
    history = EventHistory(tmp_path)
    history.refresh()
    with log_of(tmp_path).open("a") as log:
        log.write(line("odd", verdict=["unexpected_exit"]) + line("even"))
    history.refresh()

    assert ["even", "odd"] == names(history)


def test_a_line_of_many_blocks_is_read_like_any_other(tmp_path: Path) -> None:
    long = line("long", text="a" * 1_000_000)
    log_of(tmp_path).write_text(line("first") + long + line("last"))
    history = EventHistory(tmp_path)
    history.refresh()

    assert ["last", "long", "first"] == names(history)
    assert 1_000_000 == len(history.records(text="long")[0]["text"])


def test_a_hole_without_line_ends_costs_no_memory(tmp_path: Path) -> None:
    """A file that was truncated while another program wrote to it begins with zeros."""
    log = log_of(tmp_path)
    log.touch()
    os.truncate(log, 32 << 20)
    with log.open("a") as file:
        file.write("\n" + line("one"))
    history = EventHistory(tmp_path)
    tracemalloc.start()
    try:
        history.refresh()
        os.truncate(log, 64 << 20)
        history.refresh()
        with log.open("a") as file:
            file.write("\n" + line("two"))
        history.refresh()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        history.close()

    assert ["two", "one"] == names(history)
    assert peak < 16 << 20
