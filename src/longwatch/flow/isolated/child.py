"""The main program of a child process that computes one node: `isolation="process"`.

    take the channel from standard input → set sys.path as in the worker → handle SIGTERM and
    SIGUSR2 → send READY → import the function → call it → send RESULT or RAISED → exit 0

SIGTERM cancels the context of a function that takes one, and the task of an async function. Any
other function is interrupted by an exception, and its `finally` blocks run. SIGUSR2 writes the
stacks of all threads to standard error, also while the GIL is held. Imports are as late as
possible, because every attempt pays for them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from longwatch.flow.isolated.child_channel import (
    CancelListener,
    ChildContext,
    ChildFrameChannel,
    SigtermExit,
    die_of_sigterm,
)
from longwatch.flow.isolated.frames import INPUTS, PATH, RAISED, READY, REQUEST, RESULT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from longwatch.core.cancel import CancelToken

STACKS_SIGNAL = signal.SIGUSR2


def main() -> NoReturn:
    channel = _open_channel()
    sys.path[:] = [os.fsdecode(entry) for entry in channel.expect(PATH).split(b"\0")]
    faulthandler.register(STACKS_SIGNAL, file=os.dup(2), all_threads=True)
    listener = CancelListener(channel)
    channel.send(READY)
    try:
        reply = _reply(channel, listener)
    except SigtermExit:
        with suppress(Exception):
            sys.stdout.flush()
        die_of_sigterm()
    listener.may_interrupt = False
    channel.send_reply(*reply)
    sys.exit(0)


def _open_channel() -> ChildFrameChannel:
    """Move the channel away from standard input, so that neither user code nor its child processes
    read it.
    """
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # printed lines are kept, however the process ends
    return ChildFrameChannel(descriptor)


def _reply(channel: ChildFrameChannel, listener: CancelListener) -> tuple[bytes, bytes]:
    try:
        return RESULT, _compute(channel, listener)
    except SigtermExit:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, exits too
        listener.may_interrupt = False
        if isinstance(error, MemoryError):
            error.__traceback__ = error.__context__ = None  # its frames may hold all the memory
        return RAISED, _encode_error(error)


def _compute(channel: ChildFrameChannel, listener: CancelListener) -> bytes:
    from inspect import isawaitable  # noqa: PLC0415

    from msgspec import json  # noqa: PLC0415 - found on the path of the worker

    from longwatch.flow.invocation import arguments, encode_result, signature_of  # noqa: PLC0415
    from longwatch.flow.nodes import Node, NodeKind  # noqa: PLC0415

    facts, inputs = json.decode(channel.expect(REQUEST)), channel.expect(INPUTS).decode()
    context = _make_context(channel, facts)
    function = import_function(facts["module"], facts["qualname"], wrapped=facts["wrapped"])
    if signature_of(function).takes_context:
        listener.start(context.cancel)
    node = Node(facts["node"], NodeKind(facts["kind"]), function=function)
    with _continued_trace(facts):
        result = function(**arguments(node, inputs, context))
        if isawaitable(result):
            listener.start(context.cancel)
            result = _run_awaitable(result, context.cancel)
    return encode_result(node, result)


def _continued_trace(facts: dict[str, Any]) -> AbstractContextManager[object]:
    """Switch the tracing of the worker on, and make its span of the attempt the current one."""
    if not facts["tracing"]:
        return nullcontext()
    from longwatch.core.tracing import active  # noqa: PLC0415 - for traced attempts only

    module, _, name = facts["tracing"].partition(":")
    import_function(module, name)()
    tracer = active()
    return nullcontext() if tracer is None else tracer.continued(facts["trace"])


def _make_context(channel: ChildFrameChannel, facts: dict[str, Any]) -> ChildContext:
    from longwatch.core.cancel import CancelToken  # noqa: PLC0415
    from longwatch.core.clock import SystemClock  # noqa: PLC0415
    from longwatch.core.deadline import Deadline  # noqa: PLC0415

    return ChildContext(
        channel, facts, Deadline.after(facts["remaining"], SystemClock()), CancelToken()
    )


def import_function(module: str, qualname: str, *, wrapped: int = 0) -> Callable[..., Any]:
    """Import a function by name, and unwrap `wrapped` decorators."""
    from importlib import import_module  # noqa: PLC0415

    thing: Any = import_module(module)
    for name in qualname.split("."):
        thing = getattr(thing, name)
    for _ in range(wrapped):
        thing = thing.__wrapped__
    function: Callable[..., Any] = thing
    return function


def _run_awaitable(awaitable: Awaitable[Any], token: CancelToken) -> Any:
    """Run an awaitable on a new event loop, and await its result if that is awaitable, too. The
    token cancels it.
    """
    import asyncio  # noqa: PLC0415 - for async functions only
    from inspect import isawaitable  # noqa: PLC0415

    async def whole() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            loop.call_soon_threadsafe(task.cancel)

        undo = token.on_cancel(stop)
        try:
            result: Any = awaitable
            while isawaitable(result):
                result = await result
            return result
        finally:
            undo()

    return asyncio.run(whole())


def _encode_error(error: BaseException) -> bytes:
    """Encode an exception for the worker, and print its traceback to standard error."""
    from msgspec import json  # noqa: PLC0415

    from longwatch.core.error_text import error_text  # noqa: PLC0415
    from longwatch.core.traceback_text import describe_traceback  # noqa: PLC0415
    from longwatch.errors import PermanentError, Release  # noqa: PLC0415

    facts = {
        "type": type(error).__name__,
        "text": error_text(error),
        "permanent": isinstance(error, PermanentError),
        "release": [error.safe_delay, error.reason] if isinstance(error, Release) else None,
        "memory": isinstance(error, MemoryError),
        "traceback": describe_traceback(error),
    }
    _print_traceback(error)
    return json.encode(facts)


def _print_traceback(error: BaseException) -> None:
    """Print a traceback to standard error; errors are ignored."""
    with suppress(Exception):
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
