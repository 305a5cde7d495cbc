from __future__ import annotations

import errno
import fcntl
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from longwatch.host.nonblocking_writer import NonblockingWriter, PutResult, flush_all
from longwatch.host.writer_thread import WriterThread
from polling import eventually

TIMEOUT = 10.0
LINE = b"x" * 99 + b"\n"


@dataclass
class Pipe:
    reader: int
    writer: int

    def stuff(self) -> bytes:
        """Fill the pipe, so that the next write to it blocks; returns what is in it."""
        os.set_blocking(self.writer, False)
        stuffing = b""
        with suppress(BlockingIOError):
            while True:
                stuffing += b"-" * os.write(self.writer, b"-" * 4096)
        os.set_blocking(self.writer, True)
        return stuffing

    def read_all(self) -> bytes:
        """What comes until the last writer is gone."""
        with open(self.reader, "rb", closefd=False) as file:
            return file.read()

    def close_reader(self) -> None:
        self.reader = _closed(self.reader)

    def close_writer(self) -> None:
        self.writer = _closed(self.writer)

    def close(self) -> None:
        self.close_reader()
        self.close_writer()


def _closed(fd: int) -> int:
    """Never close a number twice: by then it may be somebody else's."""
    if fd >= 0:
        os.close(fd)
    return -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(*os.pipe())
    yield made
    made.close()


def numbered(count: int) -> list[bytes]:
    return [b"%06d %s\n" % (number, b"x" * 92) for number in range(count)]


def fill(outlet: NonblockingWriter) -> list[bytes]:
    """Write until the outlet has dropped one line; returns all lines, that one included.

    Its thread is stuck with the first line, which therefore is not dropped.
    """
    lines = numbered(outlet.capacity // 100 + 1)
    assert outlet.write(lines[0])
    assert eventually(lambda: bool(outlet._in_flight))
    assert [*[True] * (len(lines) - 2), False] == [outlet.write(line) for line in lines[1:]]
    return lines


def test_what_is_written_comes_out_whole_and_in_order(pipe: Pipe) -> None:
    outlet = NonblockingWriter(pipe.writer)
    pipe.close_writer()
    lines = numbered(200)
    for line in lines:
        assert outlet.write(line)

    assert outlet.close(TIMEOUT)
    assert b"".join(lines) == pipe.read_all()
    assert 0 == outlet.dropped


def test_a_reader_that_never_reads_costs_counted_lines_but_never_blocks(pipe: Pipe) -> None:
    stuffing = pipe.stuff()
    outlet = NonblockingWriter(pipe.writer, capacity=10_000)
    pipe.close_writer()
    first, _, _, *rest = fill(outlet)
    assert not outlet.write(LINE)
    assert not outlet.flush(0.0)
    assert 2 == outlet.dropped, "the oldest that were not being written yet"

    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.append(pipe.read_all()))
    reading.start()
    assert outlet.close(TIMEOUT)
    reading.join(TIMEOUT)
    assert stuffing + first + b"".join(rest) + LINE == received[0]


def test_of_data_that_does_not_fit_the_last_whole_lines_that_do_are_taken(pipe: Pipe) -> None:
    outlet = NonblockingWriter(pipe.writer, capacity=250)

    assert not outlet.write(b"".join(numbered(5)))
    assert outlet.flush(TIMEOUT)
    assert b"".join(numbered(5)[3:]) == os.read(pipe.reader, 1000)
    assert 3 == outlet.dropped
    outlet.close()


def test_a_line_longer_than_the_buffer_is_dropped(pipe: Pipe) -> None:
    outlet = NonblockingWriter(pipe.writer, capacity=50)

    assert not outlet.write(LINE)
    assert outlet.write(b"short\n")
    assert outlet.close(TIMEOUT)
    assert (1, b"short\n") == (outlet.dropped, os.read(pipe.reader, 1000))


def test_a_reader_that_went_away_breaks_the_outlet_and_nothing_else(pipe: Pipe) -> None:
    pipe.close_reader()
    outlet = NonblockingWriter(pipe.writer)
    outlet.write(LINE * 3)

    assert not outlet.flush(TIMEOUT)
    assert outlet.broken
    assert not outlet.write(LINE)
    assert 4 == outlet.dropped
    assert not outlet.close(TIMEOUT)


def test_a_reader_that_goes_away_while_the_pipe_is_full_ends_the_congestion(pipe: Pipe) -> None:
    pipe.stuff()
    outlet = NonblockingWriter(pipe.writer, capacity=10_000)
    taken = fill(outlet)
    drained = threading.Event()
    outlet.on_drained(drained.set)
    assert outlet.congested
    assert not drained.is_set()

    pipe.close_reader()
    assert drained.wait(TIMEOUT)
    assert (True, False) == (outlet.broken, outlet.congested)
    assert len(taken) == outlet.dropped


def test_a_producer_is_called_back_once_when_the_congestion_is_over(pipe: Pipe) -> None:
    pipe.stuff()
    outlet = NonblockingWriter(pipe.writer, capacity=10_000)
    fill(outlet)
    calls: list[bool] = []
    drained = threading.Event()

    def resume() -> None:
        calls.append(outlet.congested)
        drained.set()
        raise RuntimeError("a producer's mistake")

    outlet.on_drained(resume)
    while not drained.is_set():
        os.read(pipe.reader, 4096)
        drained.wait(0.01)
    assert outlet.write(LINE)
    assert [False] == calls
    pipe.close_reader()
    outlet.close(TIMEOUT)


def test_a_producer_that_gives_up_is_not_asked_to_wait_until_it_has_drained_once(
    pipe: Pipe,
) -> None:
    """Lines are dropped instead; after that the next congestion asks it to wait again."""
    pipe.stuff()
    outlet, calls = NonblockingWriter(pipe.writer, capacity=10_000), list[int]()
    outlet.give_up()
    fill(outlet)
    assert outlet.congested
    outlet.give_up()
    outlet.on_drained(lambda: calls.append(1))
    assert (False, [1], False) == (outlet.congested, calls, outlet.write(LINE))

    while not outlet.flush(0.01):
        os.read(pipe.reader, 4096)
    pipe.stuff()
    fill(outlet)
    assert outlet.congested
    pipe.close_reader()
    outlet.close(TIMEOUT)


def test_a_buffer_that_begins_to_drop_lines_says_so_once_until_it_has_drained(pipe: Pipe) -> None:
    pipe.stuff()
    calls: list[int] = []
    outlet = NonblockingWriter(pipe.writer, capacity=10_000, on_full=lambda: calls.append(1))
    for expected in ([1], [1, 1]):
        fill(outlet)
        assert not outlet.write(LINE)
        assert expected == calls
        while not outlet.flush(0.01):
            os.read(pipe.reader, 4096)
        pipe.stuff()
    pipe.close_reader()
    outlet.close(TIMEOUT)


class Target:
    """A target that the test holds up."""

    is_open = True

    def __init__(self, order: list[Target] | None = None) -> None:
        self.order = [] if order is None else order
        self.chunks: list[tuple[bytes, int]] = []
        self.free = threading.Event()
        self.entered = threading.Event()
        self.closed = threading.Event()

    def put(self, chunk: bytes, *, skipped: int, is_wanted: Callable[[], bool]) -> PutResult:
        self.order.append(self)
        self.entered.set()
        assert self.free.wait(TIMEOUT)
        self.chunks.append((chunk, skipped))
        return PutResult(len(chunk) if is_wanted() else 0)

    def close(self) -> None:
        self.closed.set()


def test_writers_that_share_a_thread_take_turns_and_each_keeps_its_order() -> None:
    """One chunk of each after the other: a chatty one does not hold up the others."""
    order: list[Target] = []
    thread, targets = WriterThread("shared"), [Target(order), Target(order), Target(order)]
    chatty, *others = [NonblockingWriter(target, thread=thread) for target in targets]
    for target in targets[1:]:
        target.free.set()
    lines = [b"%d" % (number % 10) * 40_000 + b"\n" for number in range(9)]
    for line in lines:
        assert chatty.write(line)
    assert targets[0].entered.wait(TIMEOUT)
    assert all(other.write(b"x\n") for other in others)
    assert 1 == sum(each.name == "shared" for each in threading.enumerate())
    targets[0].free.set()

    assert all(writer.close(TIMEOUT) for writer in (chatty, *others))
    assert b"".join(lines) == b"".join(chunk for chunk, _ in targets[0].chunks)
    assert set(targets[1:]) <= set(order[:4])
    assert all(target.closed.is_set() for target in targets)
    assert eventually(lambda: not any(each.name == "shared" for each in threading.enumerate()))


def test_a_target_is_told_how_many_lines_were_dropped_before_those_it_gets() -> None:
    target = Target()
    outlet = NonblockingWriter(target, capacity=1000)
    lines = fill(outlet)
    target.free.set()

    assert outlet.close(TIMEOUT)
    assert (lines[0], 0) == target.chunks[0]
    assert (b"".join(lines[2:]), 1) == target.chunks[1]
    assert 1 == outlet.dropped


def test_a_target_that_is_stuck_is_closed_by_its_thread_and_not_under_it() -> None:
    """Closing gives up after its time; the thread closes the target when it gets free."""
    target = Target()
    outlet = NonblockingWriter(target)
    outlet.write(LINE)
    assert target.entered.wait(TIMEOUT)

    assert not outlet.close(0.0)
    assert (1, False) == (outlet.dropped, target.closed.is_set())
    target.free.set()
    assert target.closed.wait(TIMEOUT)


def test_without_congestion_the_callback_comes_at_once(pipe: Pipe) -> None:
    calls: list[int] = []
    NonblockingWriter(pipe.writer).on_drained(lambda: calls.append(1))

    assert [1] == calls


def test_closing_on_a_stuck_reader_gives_up_and_counts_what_was_lost(pipe: Pipe) -> None:
    pipe.stuff()
    outlet = NonblockingWriter(pipe.writer, capacity=10_000)
    taken = fill(outlet)

    assert not outlet.close(0.0)
    assert not outlet.write(LINE)
    assert not outlet.close(0.0)
    assert len(taken) + 1 == outlet.dropped
    pipe.close_reader()


def test_with_patience_one_that_is_read_slowly_is_flushed_while_one_that_is_stuck_is_given_up(
    pipe: Pipe,
) -> None:
    pipe.stuff()
    stuck, slow = NonblockingWriter(pipe.writer), Pipe(*os.pipe())
    read = NonblockingWriter(slow.writer)
    slow.stuff()
    waiting = [stuck.write(LINE), all(read.write(LINE * 80) for _ in range(50))]
    reader = threading.Thread(
        target=lambda: [os.read(slow.reader, 8192) for _ in range(200) if not read.flush(0.01)]
    )
    reader.start()

    assert [stuck] == flush_all([stuck, read], 1.0)
    assert ([True, True], 0, len(LINE)) == (waiting, read.pending, stuck.pending)
    reader.join()
    for outlet, end in ((stuck, pipe), (read, slow)):
        end.close_reader()
        outlet.close(0.0)
    slow.close()


def test_of_two_that_are_stuck_the_second_is_given_what_is_left_of_the_patience(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.stuff()
    outlets, waits, flush = (
        [NonblockingWriter(pipe.writer), NonblockingWriter(pipe.writer)],
        list[float](),
        NonblockingWriter.flush,
    )

    def noted(outlet: NonblockingWriter, timeout: float) -> bool:
        waits.append(timeout)
        return flush(outlet, timeout)

    monkeypatch.setattr(NonblockingWriter, "flush", noted)
    taken = [outlet.write(LINE) for outlet in outlets]

    assert outlets == flush_all(outlets, 0.2)
    assert [True, True] == taken
    assert waits[1] < waits[0]
    pipe.close_reader()
    for outlet in outlets:
        outlet.close(0.0)


def test_a_descriptor_that_is_closed_from_the_start_is_broken_from_the_start(pipe: Pipe) -> None:
    number = pipe.writer
    pipe.close()
    outlet = NonblockingWriter(number)

    assert outlet.broken
    assert not outlet.write(LINE)
    assert not outlet.close()


def test_a_number_that_is_closed_and_used_for_something_else_gets_no_line(pipe: Pipe) -> None:
    outlet = NonblockingWriter(pipe.writer)
    other_reader, other_writer = os.pipe()
    os.dup2(other_writer, pipe.writer)
    os.close(other_writer)
    outlet.write(LINE)
    outlet.close(TIMEOUT)
    pipe.close()

    assert b"" == os.read(other_reader, 1000)
    os.close(other_reader)


def test_a_description_that_someone_else_made_non_blocking_still_gets_every_line(
    pipe: Pipe,
) -> None:
    os.set_blocking(pipe.writer, False)
    outlet = NonblockingWriter(pipe.writer)
    lines = numbered(5000)
    for line in lines:
        assert outlet.write(line)
    pipe.close_writer()
    received: list[bytes] = []
    reading = threading.Thread(target=lambda: received.append(pipe.read_all()))
    reading.start()

    assert outlet.close(TIMEOUT)
    reading.join(TIMEOUT)
    assert b"".join(lines) == received[0]


def test_the_shared_description_is_never_made_non_blocking(pipe: Pipe) -> None:
    outlet = NonblockingWriter(pipe.writer)
    outlet.write(LINE)
    outlet.flush(TIMEOUT)

    assert not fcntl.fcntl(pipe.writer, fcntl.F_GETFL) & os.O_NONBLOCK
    outlet.close()


def test_a_terminal_that_hung_up_breaks_the_outlet_and_nothing_else() -> None:
    controller, terminal = pty.openpty()
    outlet = NonblockingWriter(terminal)
    outlet.write(b"hello\n")
    assert outlet.flush(TIMEOUT)
    os.close(controller)
    outlet.write(LINE)

    assert not outlet.flush(TIMEOUT)
    assert outlet.broken
    os.close(terminal)


def test_a_full_disk_behind_the_descriptor_drops_lines_but_breaks_nothing() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        outlet = NonblockingWriter(full.fileno())
        outlet.write(LINE)

        assert outlet.flush(TIMEOUT)
        assert (1, False) == (outlet.dropped, outlet.broken)
        outlet.close()


def test_a_line_torn_by_a_refusal_is_ended_before_the_next_one(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def refusing(fd: int, data: bytes) -> int:
        if data.startswith(b"torn"):
            return write(fd, data[:4])
        if data.startswith(b" line"):
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data)

    monkeypatch.setattr("longwatch.host.nonblocking_writer.os.write", refusing)
    outlet = NonblockingWriter(pipe.writer)
    outlet.write(b"torn line\n")
    outlet.flush(TIMEOUT)
    outlet.write(b"next\n")
    outlet.close(TIMEOUT)

    assert b"torn\nnext\n" == os.read(pipe.reader, 1000)
    assert 1 == outlet.dropped


def test_a_forked_child_writes_with_a_thread_of_its_own() -> None:
    script = """if True:
        import os, warnings
        warnings.simplefilter("ignore")
        from longwatch.host.nonblocking_writer import NonblockingWriter
        outlet = NonblockingWriter(1)
        outlet.write(b"parent\\n")
        outlet.flush(10)
        pid = os.fork()
        outlet.write(b"child\\n" if pid == 0 else b"parent again\\n")
        outlet.close(10)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=True
    )

    assert [b"child", b"parent", b"parent again"] == sorted(done.stdout.splitlines())


def test_a_process_ends_at_once_although_its_outlet_is_stuck(pipe: Pipe) -> None:
    script = (
        "from longwatch.host.nonblocking_writer import NonblockingWriter; o = "
        "NonblockingWriter(1); o.write(b'x' * 500_000); "
        "exit(o.close(0.0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=pipe.writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )

    assert (0, b"") == (done.returncode, done.stderr)
