from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardian_fixture import TIMEOUT, LineSink, running_guardian
from longwatch.host.capture import CUT_MARK, MAX_LINE, Capture
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import StopPolicy
from polling import eventually


class CongestedSink(LineSink):
    """A sink that says when it has had enough, and is drained when the test says so."""

    def __init__(self, *, congested: bool = True) -> None:
        super().__init__()
        self.congested = congested
        self.waiting: list[Callable[[], None]] = []
        self.paused = threading.Event()

    def on_drained(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)
        self.paused.set()

    def drain(self) -> None:
        self.congested = False
        for callback in self.waiting:
            callback()


class Pipe:
    """A pipe that is captured, and the end a child would hold."""

    def __init__(
        self,
        loop: EventLoopThread,
        sink: LineSink,
        *,
        patience: float = 5.0,
        max_line: int = MAX_LINE,
    ) -> None:
        self._loop = loop
        self.reader, self.writer = os.pipe()

        async def capture() -> Capture:
            return Capture(self.reader, sink, backpressure_seconds=patience, max_line=max_line)

        self.capture = loop.call(capture(), timeout=TIMEOUT)

    def write(self, data: bytes) -> None:
        os.write(self.writer, data)

    def close(self) -> None:
        os.close(self.writer)

    def finish(self) -> None:
        async def finish() -> None:
            self.capture.finish()

        self._loop.call(finish(), timeout=TIMEOUT)

    def is_open(self) -> bool:
        return self.capture._open


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    with EventLoopThread() as running:
        yield running


# --- one pipe -------------------------------------------------------------------------------------


def test_lines_come_whole_and_the_last_one_at_the_end_of_the_pipe(loop: EventLoopThread) -> None:
    sink = LineSink()
    pipe = Pipe(loop, sink)
    pipe.write(b"one\ntw")
    sink.wait_for_text("one\n")
    assert b"one\n" == sink.data
    pipe.write(b"o\nthree")
    sink.wait_for_text("two\n")
    pipe.close()
    sink.wait_for_text("three\n")
    assert b"one\ntwo\nthree\n" == sink.data
    assert eventually(lambda: not pipe.is_open())


def test_long_lines_are_cut_and_what_follows_is_not_harmed(loop: EventLoopThread) -> None:
    sink = LineSink()
    pipe = Pipe(loop, sink, max_line=10)
    pipe.write(b"x" * 50)
    sink.wait_for_text("[line cut]")
    pipe.write(b"x" * 50 + b"\nshort\n" + b"y" * 20 + b"\n")
    pipe.close()
    sink.wait_for_text("y" * 10)
    assert b"x" * 10 + CUT_MARK + b"short\n" + b"y" * 10 + CUT_MARK == sink.data


def test_bytes_that_are_no_text_pass_through(loop: EventLoopThread) -> None:
    sink = LineSink()
    pipe = Pipe(loop, sink)
    every = bytes(byte for byte in range(256) if byte != 10)
    pipe.write(every + b"\n")
    pipe.close()
    assert eventually(lambda: not pipe.is_open())
    assert every + b"\n" == sink.data


def test_the_end_takes_what_is_in_the_pipe_and_does_not_wait_for_whoever_holds_it(
    loop: EventLoopThread,
) -> None:
    sink = CongestedSink()
    pipe = Pipe(loop, sink)
    pipe.write(b"first\n")
    assert sink.paused.wait(TIMEOUT)
    pipe.write(b"last words\nand a half")
    pipe.finish()
    assert b"first\nlast words\nand a half\n" == sink.data
    pipe.close()


def test_finishing_again_does_nothing(loop: EventLoopThread) -> None:
    sink = LineSink()
    pipe = Pipe(loop, sink)
    pipe.write(b"tail")
    pipe.finish()
    pipe.finish()
    pipe.close()
    assert b"tail\n" == sink.data


def test_the_end_comes_even_while_somebody_goes_on_writing(loop: EventLoopThread) -> None:
    sink = LineSink()
    pipe = Pipe(loop, sink)
    stop = threading.Event()

    def chatter() -> None:
        while not stop.is_set():
            try:
                os.write(pipe.writer, b"blah\n" * 1000)
            except BrokenPipeError:
                return

    chatting = threading.Thread(target=chatter)
    chatting.start()
    try:
        sink.wait_for_text("blah")
        pipe.finish()
        assert not pipe.is_open()
    finally:
        stop.set()
        chatting.join(TIMEOUT)
        pipe.close()


# --- sinks that cannot keep up --------------------------------------------------------------------


def test_a_congested_sink_pauses_reading_until_it_is_drained(loop: EventLoopThread) -> None:
    sink = CongestedSink()
    pipe = Pipe(loop, sink, patience=1000.0)
    pipe.write(b"one\n")
    assert sink.paused.wait(TIMEOUT)
    pipe.write(b"two\n")
    run_loop(loop)
    assert b"one\n" == sink.data
    sink.drain()
    sink.wait_for_text("two\n")
    pipe.write(b"three\n")
    sink.wait_for_text("three\n")
    pipe.close()
    assert eventually(lambda: not pipe.is_open())


def test_a_sink_that_is_drained_from_another_thread_resumes_too(loop: EventLoopThread) -> None:
    sink = CongestedSink()
    pipe = Pipe(loop, sink, patience=1000.0)
    pipe.write(b"one\n")
    assert sink.paused.wait(TIMEOUT)
    pipe.write(b"two\n")
    drainer = threading.Thread(target=sink.drain)
    drainer.start()
    drainer.join(TIMEOUT)
    sink.wait_for_text("two\n")
    pipe.close()
    assert eventually(lambda: not pipe.is_open())


def test_a_sink_that_is_stuck_is_passed_over_when_patience_is_at_its_end(
    loop: EventLoopThread,
) -> None:
    sink = CongestedSink()
    pipe = Pipe(loop, sink, patience=0.01)
    for number in range(5):
        pipe.write(f"line {number}\n".encode())
        sink.wait_for_text(f"line {number}\n")
    assert 1 == len(sink.waiting)
    pipe.close()
    assert eventually(lambda: not pipe.is_open())


def test_a_sink_that_recovers_is_given_time_again(loop: EventLoopThread) -> None:
    sink = CongestedSink()
    pipe = Pipe(loop, sink, patience=0.01)
    pipe.write(b"one\n")
    sink.wait_for_text("one\n")
    pipe.write(b"two\n")
    sink.wait_for_text("two\n")
    sink.drain()
    run_loop(loop)
    sink.congested = True
    pipe.write(b"three\n")
    assert eventually(lambda: 2 == len(sink.waiting))
    pipe.close()
    assert eventually(lambda: not pipe.is_open())


def test_a_sink_that_is_drained_after_the_loop_has_ended_harms_nobody() -> None:
    sink = CongestedSink()
    with EventLoopThread() as loop:
        pipe = Pipe(loop, sink, patience=1000.0)
        pipe.write(b"one\n")
        assert sink.paused.wait(TIMEOUT)
    sink.drain()
    pipe.close()
    os.close(pipe.reader)


def run_loop(loop: EventLoopThread) -> None:
    """Let the loop look at its descriptors a few times."""

    async def turn() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    loop.call(turn(), timeout=TIMEOUT)


# --- with real children ---------------------------------------------------------------------------


def test_the_last_words_of_a_child_are_there_when_its_end_is_told() -> None:
    sink = CongestedSink()
    reader, writer = os.pipe()
    with running_guardian(cgroups=False) as guardian:
        child = guardian.spawn(
            "say('first'); os.read(0, 1); say('then'); os.write(1, b'last words')",
            stdin=reader,
            stdout=sink,
        )
        assert sink.paused.wait(TIMEOUT)  # nothing more is read until the end
        os.write(writer, b".")
        child.wait()
    assert b"first\nthen\nlast words\n" == sink.data
    os.close(reader)
    os.close(writer)


def test_a_pipe_that_somebody_outside_holds_open_does_not_delay_the_end() -> None:
    with running_guardian(cgroups=False) as guardian:
        child = guardian.spawn("say('ready'); rest()")
        child.out.wait_for_text("ready")
        with Path(f"/proc/{child.pid}/fd/1").open("wb"):
            assert "signal 9" == str(child.kill().cause)


def test_a_grandchild_that_inherits_the_pipe_does_not_delay_the_end() -> None:
    with running_guardian(cgroups=False) as guardian:
        child = guardian.spawn("orphan(lambda: (deaf(), say('orphan'), rest())); sys.exit(2)")
        assert "exit 2" == str(child.wait().cause)
        assert [] == child.survivors()


def test_a_stuck_sink_does_not_block_a_child_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Capture.__init__, "__kwdefaults__", {"backpressure_seconds": 0.01, "max_line": MAX_LINE}
    )
    with running_guardian(cgroups=False) as guardian:
        child = guardian.spawn(
            "os.write(1, b'y\\n' * 500_000); say('done')", stdout=CongestedSink()
        )
        assert "exit 0" == str(child.wait().cause)


def test_a_child_that_waits_for_a_congested_sink_can_be_stopped_at_once() -> None:
    sink = CongestedSink()
    with running_guardian(cgroups=False) as guardian:
        child = guardian.spawn("os.write(1, b'z\\n' * 500_000)", stdout=sink)
        assert sink.paused.wait(TIMEOUT)
        assert "signal 15" == str(child.stop(StopPolicy()).cause)
