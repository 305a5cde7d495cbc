"""The output of a program on its way to a log file and to the console, each of which may stall."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from longwatch.app.console import Tee
from longwatch.host.capture import Capture
from longwatch.host.loop import EventLoopThread
from longwatch.host.nonblocking_writer import NonblockingWriter, PutResult
from longwatch.observe.output_lines import tag_lines
from polling import TIMEOUT, eventually

LINES = b"".join(b"%07d %s\n" % (number, b"x" * 91) for number in range(100_000))
"""Ten times as much as a buffer holds."""


class Target:
    """Keeps what it gets, slowly, once the test lets it."""

    is_open = True

    def __init__(self, *, stalls: bool = False) -> None:
        self.data = b""
        self.free = threading.Event()
        if not stalls:
            self.free.set()

    def put(self, chunk: bytes, *, skipped: int, is_wanted: Callable[[], bool]) -> PutResult:
        self.free.wait()
        time.sleep(0.001)
        self.data += chunk
        return PutResult(len(chunk))

    def close(self) -> None:
        pass


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    with EventLoopThread() as running:
        yield running


def pass_through(loop: EventLoopThread, tee: Tee, data: bytes) -> None:
    """Write the data to a pipe that is captured for the sink, for as long as that takes."""
    reader, writer = os.pipe()

    async def capture() -> Capture:
        return Capture(reader, tee, backpressure_seconds=1000.0)

    capturing = loop.call(capture(), timeout=TIMEOUT)
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(data)
    assert eventually(lambda: not capturing._open)


def close(*writers: NonblockingWriter) -> None:
    for writer in writers:
        assert writer.close(TIMEOUT)


def test_a_program_that_writes_faster_than_file_and_console_waits_and_loses_nothing(
    loop: EventLoopThread,
) -> None:
    targets = Target(), Target()
    file, console = map(NonblockingWriter, targets)
    pass_through(loop, Tee(file, console, format_lines=tag_lines("a | ")), LINES)
    close(file, console)
    assert LINES == targets[0].data
    assert LINES == targets[1].data.replace(b"a | ", b"")
    assert 0 == file.dropped == console.dropped


def test_a_console_that_was_given_up_costs_the_file_no_line(loop: EventLoopThread) -> None:
    """The program still waits for the file, which is slow, and not for the console."""
    stuck, kept = Target(stalls=True), Target()
    console, file = NonblockingWriter(stuck), NonblockingWriter(kept)
    while not console.congested:
        console.write(LINES[:10_000])
    tee = Tee(file, console)
    tee.give_up()
    assert not tee.congested
    pass_through(loop, tee, LINES)
    close(file)
    assert (LINES, 0) == (kept.data, file.dropped)
    assert 0 < console.dropped
    stuck.free.set()
    close(console)


def test_it_is_drained_when_neither_is_congested_any_more() -> None:
    targets = Target(stalls=True), Target(stalls=True)
    writers = [NonblockingWriter(target) for target in targets]
    for writer in writers:
        while not writer.congested:
            writer.write(LINES[:10_000])
    tee, drained = Tee(*writers), threading.Event()
    tee.on_drained(drained.set)
    targets[0].free.set()
    assert writers[0].flush(TIMEOUT)
    assert (True, False) == (tee.congested, drained.is_set())
    targets[1].free.set()
    assert drained.wait(TIMEOUT)
    close(*writers)


def test_a_terminal_gets_escapes_and_the_file_the_bytes_as_they_were_written() -> None:
    targets = Target(), Target()
    file, console = map(NonblockingWriter, targets)
    written = b" 10%\r100%\n\x1b[2Jcleared\n\x1b[32mgreen\n\n"
    Tee(file, console, format_lines=tag_lines("a | ", is_terminal=True)).write(written)
    close(file, console)
    assert written == targets[0].data
    assert b"a | 100%\na | \\x1b[2Jcleared\na | \x1b[32mgreen\x1b[0m\na | \n" == targets[1].data


def test_a_pipe_gets_the_bytes_as_they_were_written_behind_the_tag() -> None:
    target = Target()
    console = NonblockingWriter(target)
    Tee(None, console, format_lines=tag_lines("a | ")).write(b" 10%\r100%\n\x1b[2J\n")
    close(console)
    assert b"a |  10%\r100%\na | \x1b[2J\n" == target.data
