from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import threading
from contextlib import suppress

import pytest

from leaks import no_leaks
from longwatch.errors import DeadlineExceededError, ServiceStateError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.loop import EventLoopThread
from longwatch.testing import check_service
from snippet import run_snippet


async def answer() -> str:
    return threading.current_thread().name


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_the_loop_thread_keeps_the_contract_of_a_service() -> None:
    check_service(EventLoopThread)


def test_the_loop_starts_with_its_first_use_and_runs_in_a_thread_of_its_own() -> None:
    loop = EventLoopThread(name="mine")
    running_before = loop.running
    assert "mine" == loop.call(answer(), timeout=10)
    assert (False, True) == (running_before, loop.running)
    assert loop.stop()
    assert not loop.running


def test_it_starts_again_when_it_is_used_after_a_stop() -> None:
    with EventLoopThread() as loop:
        first = loop.loop()
        assert loop.stop()
        assert loop.call(answer(), timeout=10)
        assert first is not loop.loop()


def test_a_call_past_its_timeout_is_cancelled() -> None:
    cancelled = threading.Event()

    async def slow() -> None:
        try:
            await for_ever()
        finally:
            cancelled.set()

    with EventLoopThread() as loop:
        with pytest.raises(DeadlineExceededError, match="no answer"):
            loop.call(slow(), timeout=0.01)
        assert cancelled.wait(10)


def test_a_timeout_raised_by_the_work_itself_is_its_own() -> None:
    async def late() -> None:
        raise TimeoutError("its own")

    with EventLoopThread() as loop, pytest.raises(TimeoutError, match="its own"):
        loop.call(late(), timeout=10)


def test_a_call_from_the_loop_itself_is_refused_instead_of_waiting_for_ever() -> None:
    with EventLoopThread() as loop:

        async def inner() -> None:
            loop.call(answer(), timeout=None)

        with pytest.raises(ServiceStateError, match="await the coroutine"):
            loop.call(inner(), timeout=10)


def test_stop_cancels_what_runs_and_lets_it_clean_up_also_what_the_cleaning_began() -> None:
    steps: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(0)
            await for_ever()
        finally:
            steps.append("tidied")

    async def work() -> None:
        try:
            await for_ever()
        finally:
            steps.append("cleaned")
            steps.append(str(asyncio.create_task(tidy()).done()))
            await asyncio.sleep(0)

    loop = EventLoopThread()
    future = loop.spawn(work())
    loop.call(answer(), timeout=10)
    assert loop.stop()
    assert future.cancelled()
    assert ["cleaned", "False", "tidied"] == steps


def test_stop_of_a_loop_that_is_blocked_gives_up_in_time_and_can_be_tried_again() -> None:
    may_go, blocked = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        may_go.wait()

    loop = EventLoopThread()
    loop.spawn(block())
    assert blocked.wait(10)
    assert not loop.stop(timeout=0.01)
    with pytest.raises(ServiceStateError, match="still running"):
        loop.spawn(answer())
    may_go.set()
    assert loop.stop()


def test_work_that_stops_its_own_loop_does_not_wait_for_itself() -> None:
    loop = EventLoopThread()

    async def stop() -> bool:
        return loop.stop(timeout=None)

    assert loop.spawn(stop()).result(10) is False
    assert loop.wait_stopped(10)


def test_cleaning_up_that_asks_for_more_work_is_refused_at_once() -> None:
    loop = EventLoopThread()
    refused: list[str] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            try:
                loop.spawn(answer())
            except ServiceStateError as error:
                refused.append(str(error))

    loop.spawn(work())
    loop.call(answer(), timeout=10)
    assert loop.stop()
    assert ["longwatch-loop is stopping and takes no more work; start() it again first"] == refused


def test_work_that_nobody_else_knows_is_not_collected() -> None:
    with EventLoopThread() as loop:
        over = threading.Event()

        async def work() -> None:
            try:
                await for_ever()
            finally:
                over.set()

        loop.spawn(work())
        loop.call(answer(), timeout=10)
        gc.collect()
        assert not over.is_set()
    assert over.is_set()


def test_no_call_is_left_hanging_by_a_stop_at_the_same_time() -> None:
    loop = EventLoopThread()
    futures: list[concurrent.futures.Future[None]] = []

    def spawn() -> None:
        for _ in range(200):
            with suppress(ServiceStateError):  # it came in the middle of a stop
                futures.append(loop.spawn(for_ever()))

    def stop() -> None:
        for _ in range(50):
            loop.stop()

    threads = [BackgroundThread(work, name="test") for work in (spawn, stop, spawn, stop)]
    for thread in threads:
        thread.start()
    assert all(thread.done.block(60) for thread in threads)
    assert loop.stop()
    assert 4 * [None] == [thread.error for thread in threads]
    assert all(future.cancelled() for future in futures)


def test_stopping_a_thousand_times_leaves_descriptors_and_threads_flat() -> None:
    loop = EventLoopThread()
    loop.call(answer(), timeout=10)
    loop.stop()
    with no_leaks():
        for _ in range(1000):
            loop.call(answer(), timeout=10)
            loop.stop()


def test_a_forked_child_gets_its_own_loop_and_the_parents_goes_on() -> None:
    code = """
        import gc, os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        from longwatch.host.loop import EventLoopThread

        async def pid():
            return os.getpid()

        loop = EventLoopThread()
        loop.call(pid(), timeout=10)
        child = os.fork()
        if child == 0:
            ok = not loop.running and loop.call(pid(), timeout=10) == os.getpid() and loop.stop()
            gc.collect()
            os._exit(0 if ok else 1)
        print(os.waitpid(child, 0)[1], loop.call(pid(), timeout=10) == os.getpid())
    """
    with run_snippet(code) as snippet:
        assert "0 True" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_a_child_forked_while_another_thread_changes_a_service_is_not_caught_in_it() -> None:
    code = """
        import os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        from longwatch.host.service import Service

        class Slow(Service):
            go, going = threading.Event(), threading.Event()
            def _start(self):
                self.going.set()
                self.go.wait()
            def _stop(self, deadline):
                return True

        service = Slow(name="slow")
        starter = threading.Thread(target=service.start)
        starter.start()
        service.going.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if service.stopped and service.stop(timeout=0) else 1)
        print(os.waitpid(child, 0)[1])
        service.go.set()
        starter.join()
        print(service.started)
    """
    with run_snippet(code) as snippet:
        assert ["0", "True"] == [snippet.read_line(), snippet.read_line()]
        assert (0, "") == snippet.wait()


def test_a_program_that_ends_with_a_busy_loop_is_not_held_up_by_it() -> None:
    code = """
        import threading
        from longwatch.host.loop import EventLoopThread

        async def block():
            print("blocking")
            threading.Event().wait()

        EventLoopThread().spawn(block())
    """
    with run_snippet(code) as snippet:
        assert 0 == snippet.wait()[0]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_that_asks_the_program_to_exit_does_not_end_the_loop(error: BaseException) -> None:
    async def leaves() -> None:
        raise error

    async def starts_one_that_leaves() -> None:
        task = asyncio.ensure_future(leaves())
        with suppress(BaseException):
            await task

    with EventLoopThread(name="mine") as loop:
        loop.spawn(starts_one_that_leaves())
        assert "mine" == loop.call(answer(), timeout=10)
        assert loop.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_that_stops_the_loop_does_not_end_it() -> None:
    async def stops() -> None:
        asyncio.get_running_loop().stop()

    with EventLoopThread(name="mine") as loop:
        for _ in range(10):
            loop.call(stops(), timeout=10)
        assert "mine" == loop.call(answer(), timeout=10)
        assert loop.stop()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), None])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_task_does_to_the_loop_while_it_is_cancelled_keeps_no_other_from_its_end(
    error: BaseException | None,
) -> None:
    began, ended = threading.Semaphore(0), threading.Event()

    async def misbehaves() -> None:
        began.release()
        try:
            await for_ever()
        finally:
            asyncio.get_running_loop().stop()
            if error is not None:
                raise error

    async def cleans_up() -> None:
        began.release()
        try:
            await for_ever()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            ended.set()

    with EventLoopThread() as loop:
        futures = [loop.spawn(misbehaves()), loop.spawn(cleans_up())]
        assert began.acquire(timeout=10)
        assert began.acquire(timeout=10)
        assert loop.stop()
    assert ended.is_set()
    assert all(future.done() for future in futures)


def test_a_coroutine_is_closed_if_there_is_no_thread_for_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the interpreter complains that it was never awaited, and that complaint is an
    error here.
    """

    def refuse(self: object, **_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundThread, "start", refuse)
    work = answer()
    with pytest.raises(RuntimeError, match="thread"):
        EventLoopThread().spawn(work)
    assert inspect.CORO_CLOSED == inspect.getcoroutinestate(work)
