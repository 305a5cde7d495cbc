"""Nodes in processes of their own: `isolation="process"`.

A worker has one guardian for all of them, started with the first (`ProcessRunner`). A node is
ordered, its child spawned, heard and ended (`apart_run.py`, over the frames of `apart_frames.py`;
the child's side is `child.py`), and how that came out is told to the engine in its own words:

    a result                                  the result, whatever became of the child after it
    an exception                              the same type and text; permanent if it was
    an end without either, called off         CancelledError: the engine knows why
    an end without either, or MemoryError     the attempt is abandoned: memory, or killed
    the guardian was lost                     nobody's fault: back in a moment, with another
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
from longwatch.core.endcause import EndKind
from longwatch.core.events import AttemptAbandoned, Events
from longwatch.core.masking import mask_text
from longwatch.errors import (
    CancelledError,
    GuardianLostError,
    LongwatchError,
    PermanentError,
    SpawnError,
)
from longwatch.flow.apart_frames import INPUTS, PATH, REQUEST, RESULT, framed
from longwatch.flow.apart_run import ChildRun, Order
from longwatch.flow.child import found
from longwatch.flow.context import FlowContext
from longwatch.flow.nodes import Node
from longwatch.flow.standing import LONGEST_ERROR, Cause
from longwatch.host.children import Guardian
from longwatch.host.loop import LoopThread
from longwatch.host.process import Ending
from longwatch.host.service import Service, ServiceGroup
from longwatch.store.claims import Claim
from longwatch.work.source import Outcome, Settlement

GRACE = 5.0
"""Seconds that a child has to end, once it was told to or has given its answer."""
_AGAIN_IN = 1.0
_SCARCE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""What a machine that has too much to do says to somebody who wants a process."""
_SAY_WITHIN = 0.5
_LONGEST_RULING = 100
_LONGEST_HEAD = 1500
_LONGEST_OUT = 1000
_ROOT = str(Path(__file__).parents[2])
_BOOT = f"import sys; sys.path.append({_ROOT!r}); from longwatch.flow.child import main; main()"
_MOST_WRAPPED = 100


class ApartEndedError(LongwatchError):
    """The child of a node ended and has said nothing; without a cause it is nobody's fault."""

    def __init__(self, cause: Cause | None, text: str) -> None:
        super().__init__(text)
        self.cause = cause

    def settlement(self, claim: Claim) -> Settlement:
        if self.cause is None:
            return Settlement(claim, Outcome.BACK, delay=_AGAIN_IN, error=str(self))
        return Settlement(claim, Outcome.FAILED, reason=str(self.cause), error=str(self))


class RaisedApartError(LongwatchError):
    """The function of a node raised, in its child; the type that it raised is in the name of a
    subclass.
    """


class ProcessRunner(Service):
    """Runs nodes in children of one guardian: it obeys `running.Apart`, from any thread. It starts
    itself with the first of them.

    `left` tells how many seconds the worker has to end, None if it has not been told to: then
    children have at most half of it.
    """

    def __init__(
        self, *, clock: Clock, events: Events, left: Callable[[], float | None] = lambda: None
    ) -> None:
        super().__init__(name="apart", clock=clock)
        loop = LoopThread(name="longwatch-apart", clock=clock)
        self.loop = loop
        self.guardian = Guardian(loop, clock=clock, events=events, on_lost=self._note_loss)
        self._group = ServiceGroup([loop, self.guardian], name="apart", clock=clock)
        self._events = events
        self._left = left
        self._lost = False
        self._mending = threading.Lock()
        self._wrapped: dict[Callable[..., Any], int] = {}

    def __call__(self, node: Node, inputs: str, context: FlowContext) -> bytes:
        """The result of a node as JSON; blocks until nothing of its child is left."""
        run = ChildRun(
            self._order(node, inputs, context), context, grace=self._grace, clock=self._clock
        )
        context.last_words = lambda: self._last_words(run)
        try:
            ending = self._ended(run)
        except (GuardianLostError, CancelledFuture) as error:
            context.cancel.raise_if_cancelled()
            raise ApartEndedError(None, str(error)) from None
        except (SpawnError, OSError) as error:
            if node.options.max_memory is None and error.errno in _SCARCE:
                raise ApartEndedError(None, str(error)) from None
            raise
        return self._concluded(run, ending, node, context)

    # --- the guardian ---

    def _start(self) -> None:
        self._group.start()

    def _stop(self, deadline: Deadline) -> bool:
        return self._group.stop(deadline=deadline)

    def _note_loss(self) -> None:
        self._lost = True

    def _ended(self, run: ChildRun) -> Ending:
        self.start()
        if self._lost:
            self._mend()
        return self.loop.spawn(run.to_its_end(self.guardian)).result()

    def _mend(self) -> None:
        with self._mending:
            if self._lost:
                self.guardian.stop()
                self._lost = False
                try:
                    self.guardian.start()
                except BaseException:
                    self._lost = True
                    raise

    def _grace(self) -> float:
        left = self._left()
        return GRACE if left is None else min(GRACE, left / 2)

    def _last_words(self, run: ChildRun) -> str:
        """Where a child is that has had its time, and what it wrote; asked for by another thread
        than the one that waits for it.
        """
        if self.started:
            with suppress(LongwatchError, CancelledFuture):
                self.loop.call(run.say_where(), timeout=_SAY_WITHIN)
        return _with_tails("", run, longest=LONGEST_ERROR - _LONGEST_RULING)

    # --- what a child is told ---

    def _order(self, node: Node, inputs: str, context: FlowContext) -> Order:
        assert node.function is not None
        request = {
            "module": node.function.__module__,
            "qualname": node.function.__qualname__,
            "wrapped": self._depth(node),
            "execution": context.execution,
            "node": node.name,
            "attempt": context.attempt,
            "fencing_token": context.fencing_token,
            "remaining": context.deadline.remaining(),
        }
        frames = (
            framed(PATH, _path()),
            framed(REQUEST, msgspec.json.encode(request)),
            framed(INPUTS, inputs.encode()),
        )
        return Order(_argv(node), dict(os.environ), b"".join(frames), node.options.max_memory)

    def _depth(self, node: Node) -> int:
        """Below how many decorators of what bears its name the function is; PermanentError if a
        child would find another one.
        """
        assert node.function is not None
        if node.function not in self._wrapped:
            self._wrapped[node.function] = _depth(node.name, node.function)
        return self._wrapped[node.function]

    # --- what became of it ---

    def _concluded(self, run: ChildRun, ending: Ending, node: Node, context: FlowContext) -> bytes:
        if run.answer is not None and run.answer[0] == RESULT:
            return run.answer[1]
        raised = None if run.answer is None else msgspec.json.decode(run.answer[1])
        if context.cancelled and raised is None:
            raise CancelledError(_with_tails(context.cancel.reason, run))
        if ending.cause.kind is EndKind.MEMORY or (
            raised and raised["memory"] and node.options.max_memory is not None
        ):
            raise self._abandoned(
                Cause.MEMORY,
                f"it needed more than its {node.options.max_memory} bytes of memory",
                run,
                context,
            )
        if raised is None:
            raise self._abandoned(
                Cause.KILLED,
                f"its process ended without a result: {ending.cause.spoken}",
                run,
                context,
            )
        raise _as_raised(raised, run)

    def _abandoned(
        self, cause: Cause, text: str, run: ChildRun, context: FlowContext
    ) -> ApartEndedError:
        if not context.lease_lost:
            self._events.emit(
                AttemptAbandoned(
                    execution=context.execution,
                    node=context.node,
                    attempt=context.attempt,
                    cause=str(cause),
                )
            )
        return ApartEndedError(cause, _with_tails(text, run))


def _as_raised(raised: dict[str, Any], run: ChildRun) -> LongwatchError:
    """An exception of the type that was raised, as far as the engine can tell: it judges by the
    base, and shows the name.
    """
    base: type[LongwatchError] = PermanentError if raised["permanent"] else RaisedApartError
    name = str(raised["type"])
    kind: type[LongwatchError] = type(name, (base,), {})
    return kind(_with_tails(raised["text"], run, longest=LONGEST_ERROR - len(name) - 2))


def _with_tails(head: str, run: ChildRun, *, longest: int = LONGEST_ERROR) -> str:
    """What is to be said, and then the end of what the child wrote, as much as fits."""
    text = head[:_LONGEST_HEAD]
    for name, tail, most in (
        ("stdout", run.out.data, _LONGEST_OUT),
        ("stderr", run.err.data, longest),
    ):
        title = f"\n--- {name}\n"
        words = (
            mask_text(tail.decode(errors="replace"))
            .replace("\0", "\N{REPLACEMENT CHARACTER}")
            .strip()
        )
        room = min(longest - len(text) - len(title), most)
        if words and room > 0:
            text += title + words[-room:]
    return text


def _argv(node: Node) -> list[str]:
    """Options of the interpreter as the worker's; the name of the node only shows in lists of
    processes.
    """
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing does
    return [sys.executable, *flags, "-P", "-c", _BOOT, node.name]


def _path() -> bytes:
    """As absolute paths: the child begins in the same directory, and need not stay there."""
    return b"\0".join(os.fsencode(entry or os.getcwd()) for entry in sys.path)  # noqa: PTH109


def _depth(name: str, function: Callable[..., Any]) -> int:
    where = f"{function.__module__}:{function.__qualname__}"
    try:
        thing: Any = found(function.__module__, function.__qualname__)
    except (ImportError, AttributeError) as error:
        raise PermanentError(
            f"the function of node {name!r} is not found as {where} ({error}); {_CURE}"
        ) from None
    for depth in range(_MOST_WRAPPED):
        if thing is function:
            return depth
        thing = getattr(thing, "__wrapped__", None)
    raise PermanentError(
        f"the function of node {name!r} is not what {where} is, so a child would call another "
        f"one; {_CURE}"
    )


_CURE = (
    "isolation='process' needs a function that is defined at the top of a module under its own name"
)
