"""The log files of a supervising process on a disk that does not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from longwatch.app.console import Console
from longwatch.config.settings import LogSettings
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import LogFileStalled, SettingsLoaded
from longwatch.host.nonblocking_writer import PutResult
from longwatch.observe.logfile import LogFile
from longwatch.supervisor.plan import OutputPolicy
from longwatch.testing import RecordingObserver

POLICY = OutputPolicy(max_bytes=10 << 20, keep=1, console=False)


class StalledDisk:
    """Every log file waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        put = LogFile.put

        def stalled(file: LogFile, *chunk: Any, **more: Any) -> PutResult:
            self.answers.wait()
            return put(file, *chunk, **more)

        monkeypatch.setattr(LogFile, "put", stalled)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    with closing(Console(LogSettings(), state=tmp_path, clock=SystemClock(), environ={})) as opened:
        yield opened


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_events_wait_for_no_disk_and_the_log_says_how_many_are_missing(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest events are dropped, one event says that it has begun, and once the disk answers
    the number of those that are missing stands where they would stand.
    """
    disk, observer = StalledDisk(monkeypatch), RecordingObserver()
    events = Events(console.log)
    events.subscribe(observer)
    console.on_log_stalled = lambda path, size: events.emit(
        LogFileStalled(path=str(path), buffered=size)
    )
    count = 0
    while not observer.of(LogFileStalled):
        events.emit(SettingsLoaded(settings={"number": count, "text": "x" * 1000}))
        count += 1
    for _ in range(100):
        events.emit(SettingsLoaded(settings={"number": count, "text": "x" * 1000}))
        count += 1
    disk.answers.set()
    console.close()
    path = tmp_path / "logs" / "watchdog.log"
    assert [(str(path), 1 << 20)] == [
        (event.path, event.buffered) for event in observer.of(LogFileStalled)
    ]
    found = records(path)
    [notice] = [record for record in found if record["event"] == "log_lines_dropped"]
    numbers = [record["settings"]["number"] for record in found if "settings" in record]
    begin = found.index(notice)
    assert list(range(begin)) + list(range(begin + notice["lines"], count)) == numbers
    assert 0 < notice["lines"] < count


def test_files_of_programs_share_one_thread_and_have_a_buffer_each(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program that fills its buffer costs another none of its lines."""
    disk = StalledDisk(monkeypatch)
    sinks = {
        name: console.tagged_streams(name, POLICY, tag="").stdout for name in ("chatty", "calm")
    }
    for number in range(50):
        sinks["chatty"].write(b"x" * 65_000 + b"\n")  # type: ignore[union-attr]
        sinks["calm"].write(b"%d\n" % number)  # type: ignore[union-attr]
    names = [thread.name for thread in threading.enumerate()]
    assert 1 == names.count("longwatch-logfiles")
    disk.answers.set()
    console.close()
    calm = (tmp_path / "logs" / "calm.log").read_text().split()
    assert [str(number) for number in range(50)] == calm
    kept = (tmp_path / "logs" / "chatty.log").read_bytes().count(b"\n")
    assert 50 == console.dropped_lines + kept
    assert 0 < console.dropped_lines
