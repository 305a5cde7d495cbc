"""Runs nodes in child processes: `isolation="process"`.

A worker has one guardian for all its children, started with the first (`ProcessRunner`). The
guardian spawns a child for each attempt. `child_run.py` is the parent's side, `child.py` the
child's side, and `frames.py` the protocol between them. How a child ended becomes the result of the
attempt:

    a result                               the result, however the child ended after it
    an exception                           an exception of the same type name and text, permanent if
                                           it was
    neither, and the attempt is cancelled  CancelledError
    neither, or MemoryError                the attempt is abandoned with the cause `memory` or
                                           `killed`
    the guardian was lost                  the attempt is released and runs again soon, with another
                                           guardian
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError as CancelledFuture
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.end_cause import EndKind
from longwatch.core.error_text import MAX_ERROR_LENGTH
from longwatch.core.events.base import Events
from longwatch.core.events.flow import AttemptAbandoned
from longwatch.core.masking import mask_text
from longwatch.core.tracing import active as active_tracer
from longwatch.core.tracing import environment as trace_variables
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import (
    CancelledError,
    GuardianLostError,
    LongwatchError,
    PermanentError,
    Release,
    SpawnError,
)
from longwatch.flow.attempt import AttemptEndCause
from longwatch.flow.context import FlowContext
from longwatch.flow.isolated.child import import_function
from longwatch.flow.isolated.child_run import ChildRun, ChildSpec
from longwatch.flow.isolated.frames import INPUTS, PATH, REQUEST, RESULT, encode_frame
from longwatch.flow.nodes import Node
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import ProcessEnd
from longwatch.host.service import Service, ServiceGroup
from longwatch.store.claims import Claim

STOP_GRACE = 5.0
"""Seconds that a child has to end after it was cancelled or has replied."""
_RETRY_DELAY = 1.0
_RESOURCE_ERRNOS = frozenset(
    {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
)
"""Errors of an overloaded machine that cannot start a process."""
_STACKS_TIMEOUT = 0.5
_MAX_REASON_LENGTH = 100
_MAX_MESSAGE_LENGTH = 1500
_MAX_STDOUT_LENGTH = 1000
_IMPORT_ROOT = str(Path(__file__).parents[3])
_CHILD_CODE = (
    f"import sys; sys.path.append({_IMPORT_ROOT!r}); from longwatch.flow.isolated.child import "
    f"main; main()"
)
_MAX_WRAPPED = 100


class ChildEndedError(LongwatchError):
    """The child of a node ended without a reply. Without a cause the attempt is released and not
    counted.
    """

    def __init__(self, cause: AttemptEndCause | None, text: str) -> None:
        super().__init__(text)
        self.cause = cause

    def settlement(self, claim: Claim) -> Settlement:
        if self.cause is None:
            return Settlement(claim, RowOutcome.RELEASED, delay=_RETRY_DELAY, error=str(self))
        return Settlement(claim, RowOutcome.FAILED, reason=str(self.cause), error=str(self))


class ChildRaisedError(LongwatchError):
    """The function of a node raised in its child. A subclass has the name of the original type."""


class ProcessRunner(Service):
    """Runs nodes in child processes of one guardian; an `IsolatedCall`. Thread-safe. The first call
    starts the guardian.

    `time_left` returns how many seconds a stopping worker has left, None if it is not stopping.
    Children of a stopping worker get at most half of that.
    """

    def __init__(
        self, *, clock: Clock, events: Events, time_left: Callable[[], float | None] = lambda: None
    ) -> None:
        super().__init__(name="isolated", clock=clock)
        loop = EventLoopThread(name="longwatch-isolated", clock=clock)
        self.loop = loop
        self.guardian = GuardianClient(
            loop, clock=clock, events=events, on_lost=self._on_guardian_lost
        )
        self._group = ServiceGroup([loop, self.guardian], name="isolated", clock=clock)
        self._events = events
        self._time_left = time_left
        self._is_guardian_lost = False
        self._restart_lock = threading.Lock()
        self._depths: dict[Callable[..., Any], int] = {}

    def __call__(self, node: Node, inputs: str, context: FlowContext) -> bytes:
        """Compute a node; returns its result as JSON. Blocks until no process of the child is
        left.
        """
        run = ChildRun(
            self._child_spec(node, inputs, context), context, grace=self._grace, clock=self._clock
        )
        context.diagnostics = lambda: self._diagnostics(run)
        try:
            ending = self._run_to_end(run)
        except (GuardianLostError, CancelledFuture) as error:
            context.cancel.raise_if_cancelled()
            raise ChildEndedError(None, str(error)) from None
        except (SpawnError, OSError) as error:
            if node.options.max_memory is None and error.errno in _RESOURCE_ERRNOS:
                raise ChildEndedError(None, str(error)) from None
            raise
        return self._result(run, ending, node, context)

    # --- the guardian ---

    def _start(self) -> None:
        self._group.start()

    def _stop(self, deadline: Deadline) -> bool:
        return self._group.stop(deadline=deadline)

    def _on_guardian_lost(self) -> None:
        self._is_guardian_lost = True

    def _run_to_end(self, run: ChildRun) -> ProcessEnd:
        self.start()
        if self._is_guardian_lost:
            self._restart_guardian()
        return self.loop.spawn(run.run(self.guardian)).result()

    def _restart_guardian(self) -> None:
        with self._restart_lock:
            if self._is_guardian_lost:
                self.guardian.stop()
                self._is_guardian_lost = False
                try:
                    self.guardian.start()
                except BaseException:
                    self._is_guardian_lost = True
                    raise

    def _grace(self) -> float:
        left = self._time_left()
        return STOP_GRACE if left is None else min(STOP_GRACE, left / 2)

    def _diagnostics(self, run: ChildRun) -> str:
        """The stacks and the output of a child that timed out. The attempt watchdog calls it while
        the slot waits for the child.
        """
        if self.started:
            with suppress(LongwatchError, CancelledFuture):
                self.loop.call(run.dump_stacks(), timeout=_STACKS_TIMEOUT)
        return _with_output("", run, limit=MAX_ERROR_LENGTH - _MAX_REASON_LENGTH)

    # --- the request ---

    def _child_spec(self, node: Node, inputs: str, context: FlowContext) -> ChildSpec:
        assert node.function is not None
        headers = context.trace_headers
        request = {
            "module": node.function.__module__,
            "qualname": node.function.__qualname__,
            "wrapped": self._depth(node),
            "execution": context.execution,
            "node": node.name,
            "kind": node.kind,
            "attempt": context.attempt,
            "fencing_token": context.fencing_token,
            "remaining": context.deadline.remaining(),
            "trace": headers,
            "tracing": getattr(active_tracer(), "import_path", "") if headers else "",
        }
        frames = (
            encode_frame(PATH, _sys_path()),
            encode_frame(REQUEST, msgspec.json.encode(request)),
            encode_frame(INPUTS, inputs.encode()),
        )
        return ChildSpec(
            _argv(node),
            {**os.environ, **trace_variables(headers)},
            b"".join(frames),
            node.options.max_memory,
        )

    def _depth(self, node: Node) -> int:
        """How many decorators wrap the function under its import path. Raises PermanentError if a
        child would import another function.
        """
        assert node.function is not None
        if node.function not in self._depths:
            self._depths[node.function] = _wrapped_depth(node.name, node.function)
        return self._depths[node.function]

    # --- the result ---

    def _result(self, run: ChildRun, ending: ProcessEnd, node: Node, context: FlowContext) -> bytes:
        if run.reply is not None and run.reply[0] == RESULT:
            return run.reply[1]
        raised = None if run.reply is None else msgspec.json.decode(run.reply[1])
        if context.cancelled and raised is None:
            raise CancelledError(_with_output(context.cancel.reason, run))
        if ending.cause.kind is EndKind.MEMORY or (
            raised and raised["memory"] and node.options.max_memory is not None
        ):
            raise self._abandon(
                AttemptEndCause.MEMORY,
                f"it needed more than its {node.options.max_memory} bytes of memory",
                run,
                context,
            )
        if raised is None:
            raise self._abandon(
                AttemptEndCause.KILLED,
                f"its process ended without a result: {ending.cause.display_name}",
                run,
                context,
            )
        raise _rebuild_exception(raised, run)

    def _abandon(
        self, cause: AttemptEndCause, text: str, run: ChildRun, context: FlowContext
    ) -> ChildEndedError:
        if not context.lease_lost:
            self._events.emit(
                AttemptAbandoned(
                    execution=context.execution,
                    node=context.node,
                    attempt=context.attempt,
                    cause=str(cause),
                )
            )
        return ChildEndedError(cause, _with_output(text, run))


def _rebuild_exception(raised: dict[str, Any], run: ChildRun) -> LongwatchError:
    """Rebuild the exception of a child. The engine decides by its base class and shows its type
    name.
    """
    if raised["release"] is not None:
        delay, reason = raised["release"]
        return Release(delay=delay, reason=reason)
    base: type[LongwatchError] = PermanentError if raised["permanent"] else ChildRaisedError
    name = str(raised["type"])
    facts = {"remote_traceback": raised["traceback"]}
    error_type: type[LongwatchError] = type(name, (base,), facts)
    return error_type(_with_output(raised["text"], run, limit=MAX_ERROR_LENGTH - len(name) - 2))


def _with_output(message: str, run: ChildRun, *, limit: int = MAX_ERROR_LENGTH) -> str:
    """A message with the end of the child's output, as much as fits."""
    text = message[:_MAX_MESSAGE_LENGTH]
    for name, tail, maximum in (
        ("stdout", run.out.data, _MAX_STDOUT_LENGTH),
        ("stderr", run.err.data, limit),
    ):
        title = f"\n--- {name}\n"
        output = (
            mask_text(tail.decode(errors="replace"))
            .replace("\0", "\N{REPLACEMENT CHARACTER}")
            .strip()
        )
        room = min(limit - len(text) - len(title), maximum)
        if output and room > 0:
            text += title + output[-room:]
    return text


def _argv(node: Node) -> list[str]:
    """The command of a child, with the interpreter options of the worker. The name of the node is
    only for process lists.
    """
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing does
    return [sys.executable, *flags, "-P", "-c", _CHILD_CODE, node.name]


def _sys_path() -> bytes:
    """The worker's sys.path with absolute entries: the child may change its directory."""
    return b"\0".join(os.fsencode(entry or os.getcwd()) for entry in sys.path)  # noqa: PTH109


def _wrapped_depth(name: str, function: Callable[..., Any]) -> int:
    import_path = f"{function.__module__}:{function.__qualname__}"
    try:
        thing: Any = import_function(function.__module__, function.__qualname__)
    except (ImportError, AttributeError) as error:
        raise PermanentError(
            f"the function of node {name!r} cannot be imported as {import_path} ({error}); {_HINT}"
        ) from None
    for depth in range(_MAX_WRAPPED):
        if thing is function:
            return depth
        thing = getattr(thing, "__wrapped__", None)
    raise PermanentError(
        f"{import_path} is not the function of node {name!r}, so a child would call "
        f"another "
        f"function; {_HINT}"
    )


_HINT = (
    "isolation='process' needs a function that is defined at the top of a module under its own name"
)
