"""The log files of a supervising process on a disk that does not answer."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from longwatch.app.console import Console, Tee
from longwatch.config.settings import LogSettings
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import LogFileStalled, SettingsLoaded
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import UsageError
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


def test_a_fault_that_workers_repeat_is_counted_on_the_console_and_whole_in_their_logs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = LogSettings(format="pretty")
    output = OutputPolicy(max_bytes=10 << 20, keep=1, console=True)
    line = b'07:30:00.000 warning  work_failed engine=jobs message_id=%d error="no page"\n'
    with closing(Console(settings, state=tmp_path, clock=FakeClock(), environ={})) as console:
        for name in ("jobs-1", "jobs-2"):
            stream = console.tagged_streams(name, output, tag=f"{name} | ", is_worker=True).stdout
            assert isinstance(stream, Tee)
            for number in range(10):
                stream.write(line % number)
    shown = capfd.readouterr().out.splitlines()
    assert [f"jobs-1 | {(line % number).decode().strip()}" for number in range(3)] == shown[:3]
    summary = 'jobs-2 | 07:30:00.000 warning  work_failed … and 17 more like this error="no page"'
    assert [summary] == shown[3:]
    for name in ("jobs-1", "jobs-2"):
        log = (tmp_path / "logs" / f"{name}.log").read_bytes()
        assert b"".join(line % number for number in range(10)) == log


def test_what_a_program_writes_is_shown_however_often_it_repeats(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = OutputPolicy(max_bytes=10 << 20, keep=1, console=True)
    lines = 10 * b"07:30:00.000 warning  work_failed error=x\n"
    settings = LogSettings(format="pretty")
    with closing(Console(settings, state=tmp_path, clock=FakeClock(), environ={})) as console:
        stream = console.tagged_streams("web", output, tag="").stdout
        assert isinstance(stream, Tee)
        stream.write(lines)
    assert lines.decode() == capfd.readouterr().out


def test_a_log_that_cannot_be_opened_while_we_run_is_left_out_and_reported_once(
    console: Console, tmp_path: Path
) -> None:
    """A program that comes later keeps its output on the console; nothing fails."""
    failed: list[tuple[Path, str]] = []
    console.on_log_failed = lambda path, reason: failed.append((path, reason))
    link = tmp_path / "logs" / "late.log"
    link.symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        sink = console.tagged_streams("late", POLICY, tag="").stdout
        sink.write(b"hello\n")  # type: ignore[union-attr]
    [(path, reason)] = failed
    assert link == path
    assert reason.startswith(f"cannot write the log {link}: it is a symbolic link; remove it")
    assert not (tmp_path / "elsewhere").exists()


def test_a_log_that_cannot_be_opened_at_the_start_is_refused(
    console: Console, tmp_path: Path
) -> None:
    (tmp_path / "logs" / "web.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="it is a symbolic link"):
        console.open_program_log("web", POLICY)
    with pytest.raises(UsageError, match="it is a symbolic link"):
        console.passthrough_streams("web", LogSettings())


def test_warnings_and_log_calls_of_other_code_become_records_until_it_is_closed(
    console: Console, tmp_path: Path
) -> None:
    former = logging.getLogger().handlers[:]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        console.redirect_logging()
        warnings.warn("odd", stacklevel=1)
        logging.getLogger("library").warning("slow")
        logging.getLogger("library").info("chatter")
        console.close()
    found = records(tmp_path / "logs" / "watchdog.log")
    assert ["py.warnings", "library"] == [record["logger"] for record in found]
    assert ("UserWarning: odd" in found[0]["message"], "slow") == (True, found[1]["message"])
    assert former == logging.getLogger().handlers
