"""Nodes in processes of their own: real children of a real guardian."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import isolated_nodes as functions
from engine_rig import begin_stop_until
from guardian_fixture import is_gone
from leaks import no_descriptor_leaks
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.events.base import Events
from longwatch.core.events.engine import WorkFailed, WorkReleased
from longwatch.core.events.flow import AttemptAbandoned
from longwatch.core.events.host import GuardianLost
from longwatch.errors import ComputationFailedError
from longwatch.flow import Computation, Execution, Flow, FlowWorker, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.invocation import MAX_VALUE_BYTES
from longwatch.flow.isolated import process_runner
from longwatch.flow.isolated.process_runner import ProcessRunner
from longwatch.testing import FakeClock, RecordingObserver
from polling import eventually
from snippet import run_snippet

TIMEOUT = 60.0
FAST_BACKOFF = BackoffPolicy(initial=0.001, factor=1.0, cap=0.001, jitter=0.0)
MEBIBYTE = 1 << 20


class IsolatedFlow(NamedTuple):
    """A flow of one node, at work."""

    flow: Flow
    worker: FlowWorker
    observer: RecordingObserver

    def start(self, x: Any) -> Execution:
        return self.flow.start("one", x=x)

    def value_of(self, x: Any) -> Any:
        return self.start(x).get("node", timeout=TIMEOUT)

    def failure_of(self, x: Any) -> Computation:
        """The last attempt of an execution that is given up."""
        execution = self.start(x)
        with pytest.raises(ComputationFailedError):
            execution.get("node", timeout=TIMEOUT)
        return execution.computations()[-1]

    @property
    def runner(self) -> ProcessRunner:
        assert self.worker._process_runner is not None
        return self.worker._process_runner


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores being told to stop is not given five seconds."""
    monkeypatch.setattr(process_runner, "STOP_GRACE", 0.1)


def graph_of(function: Callable[..., Any], **options: Any) -> Graph:
    options = {"isolation": "process", "retry": FAST_BACKOFF, "max_attempts": 1, **options}
    return Graph(
        "one", version="1", nodes=[input("x"), compute("node", ["x"], function, **options)]
    )


@contextmanager
def working(tmp_path: Path, function: Callable[..., Any], **options: Any) -> Iterator[IsolatedFlow]:
    observer = RecordingObserver()
    with Flow(f"sqlite:///{tmp_path}/f.db", [graph_of(function, **options)]) as flow:
        worker = flow.worker(concurrency=2, events=Events(observer))
        with worker:
            yield IsolatedFlow(flow, worker, observer)


def pid_in(mark: Path) -> int:
    """What an attempt has written down when it began."""
    assert eventually(lambda: mark.exists() and mark.read_text() != "")
    return int(mark.read_text())


def is_file(descriptor: str) -> bool:
    """The store opens one for whoever reads at the same time."""
    return descriptor.startswith("/")


def grace_ends(clock: FakeClock) -> list[float]:
    """The ends of the graces of children that are being stopped."""
    with clock._changed:
        return [each.due for each in clock._parked if each.thread.name == "longwatch-isolated"]


def ends_of(execution: Execution) -> list[str | None]:
    return [each.end_cause for each in execution.computations()]


# --- what comes out -------------------------------------------------------------------------------


def test_the_result_of_a_node_in_a_process_is_its_value(tmp_path: Path) -> None:
    with working(tmp_path, functions.noop) as place:
        assert {"a": [1, None, "ü"]} == place.value_of({"a": [1, None, "ü"]})


def test_defaults_and_keywords_are_as_in_a_thread(tmp_path: Path) -> None:
    nodes = [
        input("x"),
        input("extra"),
        compute("node", ["x", "extra"], functions.total, isolation="process"),
    ]
    with (
        Flow(f"sqlite:///{tmp_path}/f.db", [Graph("one", version="1", nodes=nodes)]) as flow,
        flow.worker(concurrency=2),
    ):
        assert {"sum": 7, "extra": 9} == flow.start("one", x=2, extra=9).get(
            "node", timeout=TIMEOUT
        )


def test_an_async_function_is_run_to_its_end(tmp_path: Path) -> None:
    with working(tmp_path, functions.later) as place:
        assert 42 == place.value_of(41)


def test_the_context_in_the_child_says_what_it_says_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGWATCH_TEST_ISOLATED", "as the worker's")
    with working(tmp_path, functions.seen) as place:
        execution = place.start(7)
        told = execution.get("node", timeout=TIMEOUT)
    assert os.getpid() != told.pop("pid")
    assert {
        "x": 7,
        "execution": execution.id,
        "node": "node",
        "attempt": 1,
        "token": True,
        "remaining": True,
        "cancelled": False,
        "lease_lost": False,
        "logger": "node",
        "cwd": str(Path.cwd()),
        "env": "as the worker's",
    } == told


def test_what_is_done_to_the_standard_streams_does_not_disturb_the_answer(tmp_path: Path) -> None:
    with working(tmp_path, functions.speaks_on_standard_input_and_output) as place:
        assert 5 == place.value_of(5)


def test_a_copy_of_the_process_that_returns_as_well_has_no_say(tmp_path: Path) -> None:
    with working(tmp_path, functions.forks_and_returns) as place:
        assert 6 == place.value_of(5)


@pytest.mark.usefixtures("short_grace")
def test_a_process_that_does_not_end_after_its_answer_is_killed_and_the_answer_counts(
    tmp_path: Path,
) -> None:
    with working(tmp_path, functions.answers_and_lingers) as place:
        assert 8 == place.value_of(8)


def test_a_decorated_function_is_called_with_its_decorator(tmp_path: Path) -> None:
    with working(tmp_path, functions.decorated) as place:
        assert -3 == place.value_of(3)


def test_a_value_of_some_mebibytes_goes_in_and_comes_out(tmp_path: Path) -> None:
    large = "x" * (5 * MEBIBYTE)
    with working(tmp_path, functions.noop) as place:
        assert large == place.value_of(large)


# --- what goes wrong ------------------------------------------------------------------------------


def test_what_is_raised_is_told_by_type_and_text_with_what_was_printed_and_tried_again(
    tmp_path: Path,
) -> None:
    with working(tmp_path, functions.raises, max_attempts=2) as place:
        last = place.failure_of(3)
    assert (2, "failed", "raised") == (last.attempt, last.state, last.end_cause)
    assert last.error is not None
    assert last.error.startswith(
        "ValueError: not 3\n--- stdout\non its way\n--- stderr\nin trouble\nTraceback"
    )


def test_a_permanent_error_of_any_name_is_not_tried_again(tmp_path: Path) -> None:
    with working(tmp_path, functions.gives_up, max_attempts=5) as place:
        last = place.failure_of(3)
    assert (1, "permanent") == (last.attempt, last.end_cause)
    assert "Never: never 3" == (last.error or "").splitlines()[0]


def test_the_traceback_of_what_was_raised_in_a_process_has_its_frames(tmp_path: Path) -> None:
    with working(tmp_path, functions.gives_up, max_attempts=5) as place:
        place.failure_of(3)
        failed = place.observer.wait_for(WorkFailed)
    assert 'isolated_nodes.py", line ' in failed.traceback
    assert failed.traceback.endswith(
        'in gives_up\n    raise Never(f"never {x}")\nisolated_nodes.Never: never 3'
    )


def test_a_process_can_give_its_computation_back(tmp_path: Path) -> None:
    with working(tmp_path, functions.releases_once) as place:
        execution = place.start(str(tmp_path))
        assert "done" == execution.get("node", timeout=TIMEOUT)
        released = place.observer.wait_for(WorkReleased)
        [attempt] = execution.computations()
    assert (f"{execution.id}/node", 0.01, "not yet") == (
        released.computation,
        released.delay,
        released.reason,
    )
    assert (1, 1, "success") == (attempt.attempt, attempt.releases, attempt.state)
    assert [] == place.observer.of(WorkFailed)


def test_a_process_that_exits_without_a_result_is_killed_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with working(tmp_path, functions.exits) as place:
        last = place.failure_of(3)
    assert ("abandoned", "killed") == (last.state, last.end_cause)
    said = (
        "its process ended without a result: exit 3\n--- stdout\nlast words\n--- stderr\nlast "
        "complaint"
    )
    assert said == last.error
    assert ["killed"] == [each.cause for each in place.observer.of(AttemptAbandoned)]


def test_a_process_that_is_killed_says_by_which_signal(tmp_path: Path) -> None:
    with working(tmp_path, functions.is_killed) as place:
        last = place.failure_of(3)
    assert ("killed", True) == (
        last.end_cause,
        (last.error or "").startswith("its process ended without a result: SIGKILL\n"),
    )
    assert (last.error or "").endswith("--- stdout\nbefore the end")


def test_more_memory_than_it_may_use_ends_the_attempt_as_memory(tmp_path: Path) -> None:
    with working(tmp_path, functions.eats, max_memory=120 * MEBIBYTE) as place:
        last = place.failure_of(0)
        assert ("abandoned", "memory") == (last.state, last.end_cause)
        assert (last.error or "").startswith(
            f"it needed more than its {120 * MEBIBYTE} bytes of memory"
        )


def test_memory_below_the_limit_is_no_fault(tmp_path: Path) -> None:
    with working(tmp_path, functions.noop, max_memory=120 * MEBIBYTE) as place:
        assert 1 == place.value_of(1)


def test_a_result_too_large_to_be_kept_is_permanent(tmp_path: Path) -> None:
    with working(tmp_path, functions.too_large, max_attempts=5) as place:
        last = place.failure_of(MAX_VALUE_BYTES)
    assert (1, "permanent") == (last.attempt, last.end_cause)
    assert f"a value of {MAX_VALUE_BYTES + 2} bytes is larger than {MAX_VALUE_BYTES}" in (
        last.error or ""
    )


def test_a_function_whose_name_is_that_of_another_one_is_permanent_with_the_cure(
    tmp_path: Path,
) -> None:
    with working(tmp_path, functions.first_shadowed, max_attempts=5) as place:
        last = place.failure_of(1)
    assert "permanent" == last.end_cause
    assert "isolated_nodes:shadowed is not the function of node" in (last.error or "")
    assert "defined at the top of a module" in (last.error or "")


# --- being told to stop ---------------------------------------------------------------------------


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("function", [functions.second_try, functions.holds_the_gil])
def test_a_deadline_ends_code_that_nothing_else_ends_and_it_is_tried_again(
    tmp_path: Path, function: Callable[..., Any]
) -> None:
    with working(tmp_path, function, abandon_after_seconds=2.0, max_attempts=20) as place:
        execution = place.start(str(tmp_path))
        assert 2 == execution.get("node", timeout=TIMEOUT)
        first = execution.computations()[0]
        assert eventually(lambda: is_gone(pid_in(tmp_path / "tried")))
        assert 2 == place.value_of(str(tmp_path))
    assert ("abandoned", "deadline") == (first.state, first.end_cause)
    assert f"in {function.__name__}" in (first.error or "")


def test_a_function_with_a_context_is_told_the_reason_and_can_end_by_itself(tmp_path: Path) -> None:
    with working(tmp_path, functions.obeys, max_attempts=3) as place:
        execution = place.start(str(tmp_path))
        pid = pid_in(tmp_path / "tried")
        execution.abandon("node")
        assert "again" == execution.get("node", timeout=TIMEOUT)
        assert eventually(lambda: is_gone(pid))
        assert ("lease_lost", ["asked", "done"]) == (
            (tmp_path / "reason").read_text(),
            ends_of(execution),
        )


@pytest.mark.parametrize("function", [functions.waits, functions.obeys_async])
def test_a_function_without_a_context_is_interrupted_and_unwinds(
    tmp_path: Path, function: Callable[..., Any]
) -> None:
    with working(tmp_path, function, max_attempts=3) as place:
        execution = place.start(str(tmp_path))
        pid = pid_in(tmp_path / "tried")
        execution.abandon("node")
        execution.get("node", timeout=TIMEOUT)
        assert eventually(lambda: is_gone(pid))
        assert (tmp_path / "unwound").exists()
        assert ["asked", "done"] == ends_of(execution)


def test_sigterm_from_somebody_else_cancels_the_context(tmp_path: Path) -> None:
    with working(tmp_path, functions.obeys) as place:
        execution = place.start(str(tmp_path))
        os.kill(pid_in(tmp_path / "tried"), signal.SIGTERM)
        assert "stopped" == execution.get("node", timeout=TIMEOUT)
    assert "SIGTERM" == (tmp_path / "reason").read_text()


def test_sigterm_to_a_copy_that_user_code_has_forked_ends_that_alone(tmp_path: Path) -> None:
    with working(tmp_path, functions.ends_a_copy) as place:
        assert [-signal.SIGTERM, False] == place.value_of(0)


def test_sigterm_from_somebody_else_kills_a_function_without_a_context(tmp_path: Path) -> None:
    with working(tmp_path, functions.waits) as place:
        execution = place.start(str(tmp_path))
        os.kill(pid_in(tmp_path / "tried"), signal.SIGTERM)
        with pytest.raises(
            ComputationFailedError, match="its process ended without a result: SIGTERM"
        ):
            execution.get("node", timeout=TIMEOUT)


def test_a_worker_that_stops_ends_its_children_in_time_and_their_attempts_come_back_unspent(
    tmp_path: Path,
) -> None:
    """A child that ignores SIGTERM is killed at the end of its grace, before the deadline. Time
    stands still until the child has its grace.
    """
    url, graph, clock = f"sqlite:///{tmp_path}/f.db", graph_of(functions.second_try), FakeClock()
    with Flow(url, [graph], clock=clock) as flow, flow.worker(concurrency=2) as worker:
        execution = flow.start("one", x=str(tmp_path))
        pid = pid_in(tmp_path / "tried")
        stopping = begin_stop_until(
            clock, lambda: grace_ends(clock) != [], lambda timeout: worker.shutdown(timeout=timeout)
        )
        assert not is_gone(pid)
        clock._wake_due(*grace_ends(clock))
        assert stopping.wait()
        assert is_gone(pid)
    with Flow(url, [graph]) as flow:
        execution = flow.execution(execution.id)
        with flow.worker(concurrency=2):
            assert 2 == execution.get("node", timeout=TIMEOUT)
        assert ["done"] == ends_of(execution)


# --- progress -------------------------------------------------------------------------------------


def test_beats_of_the_child_keep_it_from_being_stalled(tmp_path: Path) -> None:
    with working(tmp_path, functions.beats, progress_timeout_seconds=3.0) as place:
        execution = place.start(4.5)
        assert execution.get("node", timeout=TIMEOUT) > 1
        assert ["done"] == ends_of(execution)


@pytest.mark.usefixtures("short_grace")
def test_a_child_that_does_not_beat_is_stalled(tmp_path: Path) -> None:
    with working(
        tmp_path, functions.silent_after_one, progress_timeout_seconds=2.0, max_attempts=20
    ) as place:
        execution = place.start(str(tmp_path))
        assert 2 == execution.get("node", timeout=TIMEOUT)
        assert "stalled" == ends_of(execution)[0]


# --- the guardian ---------------------------------------------------------------------------------


def test_a_worker_without_such_nodes_has_no_guardian(tmp_path: Path) -> None:
    with working(tmp_path, functions.noop, isolation="thread") as place:
        assert 1 == place.value_of(1)
        assert place.runner.stopped


def test_an_attempt_whose_guardian_is_killed_comes_back_unspent_and_runs_under_another(
    tmp_path: Path,
) -> None:
    with working(tmp_path, functions.waits) as place:
        execution = place.start(str(tmp_path))
        pid, guardian = pid_in(tmp_path / "tried"), place.runner.guardian.pid
        assert guardian is not None
        os.kill(guardian, signal.SIGKILL)
        assert 2 == execution.get("node", timeout=TIMEOUT)
        assert guardian != place.runner.guardian.pid
        assert is_gone(pid)
        assert 1 == len(place.observer.of(GuardianLost))
        assert ["done"] == ends_of(execution)


def test_the_children_of_a_worker_that_is_killed_die_with_it(tmp_path: Path) -> None:
    code = f"""
    import sys; sys.path.insert(0, {str(Path(functions.__file__).parent)!r})
    import isolated_nodes as functions
    from longwatch.flow import Flow, Graph, compute, input  # noqa: A004 - the contract's word

    nodes = [input("x"), compute("node", ["x"], functions.second_try, isolation="process")]
    flow = Flow("sqlite:///{tmp_path}/f.db", [Graph("one", version="1", nodes=nodes)])
    flow.start("one", x={str(tmp_path)!r})
    flow.worker(concurrency=2).run()
    """
    with run_snippet(code) as worker:
        pid = pid_in(tmp_path / "tried")
        worker.signal(signal.SIGKILL)
        worker.wait()
        assert eventually(lambda: is_gone(pid))


def test_fifty_children_leave_no_descriptor_open(tmp_path: Path) -> None:
    with working(tmp_path, functions.noop) as place:
        assert [0, 1] == [place.value_of(number) for number in range(2)]
        with no_descriptor_leaks(ignored=is_file):
            executions = [place.start(number) for number in range(50)]
            assert list(range(50)) == [each.get("node", timeout=TIMEOUT) for each in executions]
        assert {} == place.runner.guardian._children
