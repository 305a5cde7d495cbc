"""The program of a child that computes one node: `isolation="process"`.

    take the channel from standard input → the worker's sys.path → hear SIGTERM and SIGUSR2 → say
    READY → import the function → call it → say RESULT or RAISED → exit 0, whatever it was

SIGTERM cancels the context of a function that takes one, and the task of one that is async; any
other function cannot be told, so it is interrupted where it stands, and its `finally` blocks run.
SIGUSR2 has the stacks of all threads written to standard error, also while the GIL is held. What
can be imported later is: this is paid for by every attempt.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import suppress
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
    """Out of the way of whoever reads standard input, and of programs that are started."""
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what was printed is kept, however this ends
    return ChildFrameChannel(descriptor)


def _reply(channel: ChildFrameChannel, listener: CancelListener) -> tuple[bytes, bytes]:
    try:
        return RESULT, _compute(channel, listener)
    except SigtermExit:
        raise
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, exits too
        listener.may_interrupt = False
        if isinstance(error, MemoryError):
            error.__traceback__ = error.__context__ = (
                None  # what its frames hold may be all the memory there is
            )
        return RAISED, _encode_error(error)


def _compute(channel: ChildFrameChannel, listener: CancelListener) -> bytes:
    from inspect import isawaitable  # noqa: PLC0415

    from msgspec import json  # noqa: PLC0415 - where it is, the worker's path says

    from longwatch.flow.invocation import arguments, encode_result, signature_of  # noqa: PLC0415
    from longwatch.flow.nodes import Node  # noqa: PLC0415

    facts, inputs = json.decode(channel.expect(REQUEST)), channel.expect(INPUTS).decode()
    context = _make_context(channel, facts)
    function = import_function(facts["module"], facts["qualname"], wrapped=facts["wrapped"])
    if signature_of(function).takes_context:
        listener.start(context.cancel)
    node = Node(facts["node"], function=function)
    result = function(**arguments(node, inputs, context))
    if isawaitable(result):
        listener.start(context.cancel)
        result = _run_awaitable(result, context.cancel)
    return encode_result(node, result)


def _make_context(channel: ChildFrameChannel, facts: dict[str, Any]) -> ChildContext:
    from longwatch.core.cancel import CancelToken  # noqa: PLC0415
    from longwatch.core.clock import SystemClock  # noqa: PLC0415
    from longwatch.core.deadline import Deadline  # noqa: PLC0415

    return ChildContext(
        channel, facts, Deadline.after(facts["remaining"], SystemClock()), CancelToken()
    )


def import_function(module: str, qualname: str, *, wrapped: int = 0) -> Callable[..., Any]:
    """The function of that name, below so many decorators."""
    from importlib import import_module  # noqa: PLC0415

    thing: Any = import_module(module)
    for name in qualname.split("."):
        thing = getattr(thing, name)
    for _ in range(wrapped):
        thing = thing.__wrapped__
    function: Callable[..., Any] = thing
    return function


def _run_awaitable(awaitable: Awaitable[Any], token: CancelToken) -> Any:
    """Run it on a loop of its own; what it returns to be awaited in turn, too. Cancelled with
    the token.
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
    """What was raised, for the worker; its traceback goes to standard error, too."""
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
    """On standard error, as far as that can be done."""
    with suppress(Exception):
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
