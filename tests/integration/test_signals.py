from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from signal import SIGHUP, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, Signals

import pytest

from leaks import no_leaks
from longwatch.errors import ServiceStateError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.signals import SignalStream, catch_signals
from snippet import run_snippet


def send(*signals: Signals) -> None:
    for signum in signals:
        os.kill(os.getpid(), signum)


def read_all(stream: SignalStream, put: Callable[[int], None]) -> None:
    for signum in stream:
        put(signum)


def test_signals_are_read_in_their_order() -> None:
    with catch_signals([SIGUSR1, SIGUSR2, SIGHUP]) as stream:
        send(SIGUSR2, SIGHUP, SIGUSR1)
        assert [SIGUSR2, SIGHUP, SIGUSR1] == [stream.read(), stream.read(), stream.read()]


def test_an_ordinary_thread_reads_what_comes_to_the_main_thread() -> None:
    got: list[int | None] = []
    with catch_signals([SIGUSR1]) as stream:
        reader = BackgroundThread(lambda: got.append(stream.read()), name="test")
        reader.start()
        send(SIGUSR1)
        assert reader.done.block(10)
    assert [SIGUSR1] == got


def test_reading_gives_up_after_its_timeout() -> None:
    with catch_signals([SIGUSR1]) as stream:
        assert stream.read(0.0) is None
        assert stream.read(0.01) is None


def test_a_second_signal_before_the_first_is_read_is_not_lost() -> None:
    with catch_signals([SIGUSR1]) as stream:
        send(SIGUSR1, SIGUSR1)
        assert [SIGUSR1, SIGUSR1, None] == [stream.read(0), stream.read(0), stream.read(0)]


def test_a_storm_of_one_signal_neither_fills_the_memory_nor_hides_another() -> None:
    with catch_signals([SIGUSR1, SIGUSR2]) as stream:
        for _ in range(1000):
            send(SIGUSR1)
        send(SIGUSR2)
        assert [SIGUSR1, SIGUSR1, SIGUSR2, None] == [stream.read(0) for _ in range(4)]


def test_a_full_pipe_loses_no_signal_and_blocks_no_handler() -> None:
    with catch_signals([SIGUSR1]) as stream:
        with suppress(BlockingIOError):
            while os.write(stream._writer, b"x" * 4096):
                pass
        send(SIGUSR1)
        assert [SIGUSR1, None] == [stream.read(0), stream.read(0)]
        send(SIGUSR1)
        assert SIGUSR1 == stream.read(0)


def test_the_former_handlers_come_back() -> None:
    def mine(signum: int, frame: object) -> None: ...

    signal.signal(SIGUSR1, mine)
    signal.signal(SIGUSR2, signal.SIG_IGN)
    try:
        with catch_signals([SIGUSR1, SIGUSR2, SIGHUP]):
            assert mine is not signal.getsignal(SIGUSR1)
        assert [mine, signal.SIG_IGN, signal.SIG_DFL] == [
            signal.getsignal(one) for one in (SIGUSR1, SIGUSR2, SIGHUP)
        ]
        send(SIGUSR2)
    finally:
        signal.signal(SIGUSR1, signal.SIG_DFL)
        signal.signal(SIGUSR2, signal.SIG_DFL)


def test_the_former_handlers_come_back_when_the_block_raises_and_blocks_nest() -> None:
    with no_leaks(), catch_signals([SIGUSR1]) as outer:
        with suppress(KeyError), catch_signals([SIGUSR1]) as inner:
            send(SIGUSR1)
            assert SIGUSR1 == inner.read(0)
            raise KeyError
        send(SIGUSR1)
        assert SIGUSR1 == outer.read(0)
    assert signal.SIG_DFL == signal.getsignal(SIGUSR1)


def test_a_handler_that_c_code_installed_comes_back() -> None:
    code = """
        import faulthandler, os, signal, sys
        from longwatch.host.signals import catch_signals

        faulthandler.register(signal.SIGUSR1, file=sys.stdout)
        with catch_signals([signal.SIGUSR1]) as stream:
            os.kill(os.getpid(), signal.SIGUSR1)
            print(stream.read())
        os.kill(os.getpid(), signal.SIGUSR1)
        print("alive")
    """
    with run_snippet(code) as snippet:
        assert str(int(SIGUSR1)) == snippet.read_line()
        assert snippet.read_line().startswith("Current thread")
        while line := snippet.read_line():
            last = line
        assert "alive" == last
        assert (0, "") == snippet.wait()


def test_a_handler_unknown_to_python_comes_back() -> None:
    code = """
        import ctypes, os, signal, sys
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda signum: os.write(1, b"in C\\n"))
        from longwatch.host.signals import catch_signals

        ctypes.CDLL(None).signal(signal.SIGUSR1, handler)
        real = signal.getsignal
        signal.getsignal = lambda signum: None if signum == signal.SIGUSR1 else real(signum)
        with catch_signals([signal.SIGUSR1]) as stream:
            os.kill(os.getpid(), signal.SIGUSR1)
            print(stream.read())
        os.kill(os.getpid(), signal.SIGUSR1)
        print("alive")
    """
    with run_snippet(code) as snippet:
        assert [str(int(SIGUSR1)), "in C", "alive"] == [snippet.read_line() for _ in range(3)]
        assert (0, "") == snippet.wait()


def test_off_the_main_thread_it_raises_and_changes_nothing() -> None:
    before = signal.getsignal(SIGUSR1)
    stream = SignalStream([SIGUSR1])
    opener = BackgroundThread(stream.open, name="test")
    with no_leaks():
        opener.start()
        assert opener.done.block(10)
    assert isinstance(opener.error, ServiceStateError)
    assert before == signal.getsignal(SIGUSR1)
    assert stream.read() is None


def test_closing_off_the_main_thread_raises_and_it_goes_on_catching() -> None:
    with catch_signals([SIGUSR1]) as stream:
        closer = BackgroundThread(stream.close, name="test")
        closer.start()
        assert closer.done.block(10)
        assert isinstance(closer.error, ServiceStateError)
        send(SIGUSR1)
        assert SIGUSR1 == stream.read(0)


def test_a_signal_that_cannot_be_caught_is_refused_and_the_others_are_put_back() -> None:
    before = signal.getsignal(SIGUSR1)
    with no_leaks():
        for number in (SIGKILL, 999):
            with (
                pytest.raises(UsageError, match=f"signal {int(number)} cannot be caught"),
                catch_signals([SIGUSR1, number]),
            ):
                pass
    assert before == signal.getsignal(SIGUSR1)


def test_closing_ends_the_reader() -> None:
    got: SimpleQueue[int] = SimpleQueue()
    with catch_signals([SIGUSR1]) as stream:
        reader = BackgroundThread(lambda: read_all(stream, got.put), name="test")
        reader.start()
        send(SIGUSR1)
        assert SIGUSR1 == got.get(timeout=10)
    assert reader.done.block(10)
    assert reader.error is None
    assert stream.read() is None


def test_the_handler_may_interrupt_the_main_thread_while_it_holds_any_lock() -> None:
    with catch_signals([SIGUSR1]) as stream:
        locks = [stream._read_lock, threading._active_limbo_lock]  # type: ignore[attr-defined]
        for lock in locks:
            with lock:
                send(SIGUSR1)
        assert [SIGUSR1, SIGUSR1] == [stream.read(0), stream.read(0)]


def test_in_a_forked_child_a_caught_signal_takes_its_default_action() -> None:
    code = """
        import os, signal, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        from longwatch.host.signals import catch_signals

        with catch_signals([signal.SIGTERM]) as stream:
            child = os.fork()
            if child == 0:
                print("child")
                signal.pause()
                os._exit(3)
            print(input(), flush=True)
            os.kill(child, signal.SIGTERM)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(stream.read(0))
    """
    with run_snippet(code) as snippet:
        assert "child" == snippet.read_line()
        snippet.send_line("parent")
        assert ["parent", str(-SIGTERM), "None"] == [snippet.read_line() for _ in range(3)]
        assert (0, "") == snippet.wait()


def test_in_a_forked_child_closing_and_reading_do_not_hang() -> None:
    code = """
        import os, signal, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        from longwatch.host.signals import catch_signals

        with catch_signals([signal.SIGTERM]) as stream:
            reader = threading.Thread(target=stream.read, daemon=True)
            reader.start()
            while not stream._read_lock.locked():
                pass
            child = os.fork()
            if child == 0:
                stream.close()
                os._exit(0 if stream.read() is None else 1)
            print(os.waitpid(child, 0)[1])
            os.kill(os.getpid(), signal.SIGTERM)
            reader.join()
    """
    with run_snippet(code) as snippet:
        assert "0" == snippet.read_line()
        assert (0, "") == snippet.wait()
