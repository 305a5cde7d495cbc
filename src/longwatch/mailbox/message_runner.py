"""Runs the user's handler on a claimed message and turns its result into a settlement."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from longwatch.core.tracing import Work
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult, is_coroutine_function
from longwatch.errors import SerializationError
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message
from longwatch.mailbox.records import MessageRecord
from longwatch.mailbox.spans import message_work

BodyT = TypeVar("BodyT")

_GENERATOR_ERROR = (
    "the handler is a generator, whose code would never run: {}; use return, not yield"
)


class EngineMessage(Message[BodyT]):
    """A message that the engine runs. If the user's code settles it, the engine only counts it."""

    __slots__ = ("_context",)

    def __init__(
        self, mailbox: Mailbox[BodyT], record: MessageRecord, body: BodyT, context: RowContext
    ) -> None:
        super().__init__(mailbox, context.claimed.claim, record, body)
        self._context = context

    def finalize(self) -> None:
        super().finalize()
        self._context.settled = True

    def _settle(self, settlement: Settlement) -> None:
        super()._settle(settlement)
        self._context.forced_settlement = settlement


class MessageRunner:
    """Decodes a message, calls `handle(message, context)`, and acknowledges the message when the
    call returns.

    A body that cannot be decoded is dead-lettered at once. The engine judges an exception of
    `handle`: a failure is retried later, a `Release` releases the message without blame. An
    awaitable result is awaited on the engine's loop, and cancelled there with its context. A
    generator raises TypeError, because nothing would run it: in the constructor where the function
    shows it, else as a failure of the message.
    """

    def __init__(
        self, mailbox: Mailbox[BodyT], handle: Callable[[Message[BodyT], RowContext], Any]
    ) -> None:
        require_no_generator_function(handle)
        self.runs_coroutines = is_coroutine_function(handle)
        self._mailbox = mailbox
        self._handle = handle

    def __call__(
        self, claimed: ClaimedRow, context: RowContext
    ) -> PendingResult | Settlement | None:
        try:
            body = self._mailbox.decode(claimed.item)
        except SerializationError as error:
            return Settlement(
                claimed.claim, RowOutcome.DEAD, reason="undecodable", error=str(error)
            )
        result = self._handle(EngineMessage(self._mailbox, claimed.item, body, context), context)
        if inspect.isawaitable(result):
            return PendingResult(result, lambda awaited: _settlement(context, awaited))
        return _settlement(context, result)

    def describe_work(self, claimed: ClaimedRow) -> Work:
        """Describe the span of a message."""
        return message_work(self._mailbox.name, claimed.item)


def require_no_generator_function(handle: Callable[..., Any]) -> None:
    """Raise TypeError if the handler is a generator function."""
    for code in (handle, getattr(handle, "__call__", None)):  # noqa: B004 - needs the method itself, not whether the object is callable
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise TypeError(_GENERATOR_ERROR.format(handle))


def require_no_generator(result: object) -> None:
    """Raise TypeError if a handler returned a generator, because its body has not run."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(_GENERATOR_ERROR.format(result))


def _settlement(context: RowContext, result: object) -> Settlement | None:
    if result is not None:
        require_no_generator(result)
    return None if context.settled else Settlement(context.claimed.claim, RowOutcome.DONE)
