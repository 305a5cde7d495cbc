"""A mailbox's messages through the engine: the user's function on one side, settlements on the
other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult
from longwatch.errors import SerializationError
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message
from longwatch.mailbox.records import MessageRecord

BodyT = TypeVar("BodyT")

_GENERATOR_ERROR = (
    "the handler is a generator, which does nothing until somebody runs through it: {}; use "
    "return, not yield"
)


class EngineMessage(Message[BodyT]):
    """A message that the engine runs. If the user's code settles it by itself, the engine only
    counts that.
    """

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
    """Decodes a message, gives it to `handle(message, context)`, and acknowledges it when that
    returns.

    A body that cannot be read is dead at once. What `handle` raises is the engine's to judge: a
    failure, tried again later, or given back without blame if it is a `Release`. What an `async
    def` handle, or any other, returns to be awaited is awaited on the engine's loop, and cancelled
    there when its context is. A generator is refused, here if it can be known, else as a failure:
    nothing would run it.
    """

    def __init__(
        self, mailbox: Mailbox[BodyT], handle: Callable[[Message[BodyT], RowContext], Any]
    ) -> None:
        require_no_generator_function(handle)
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


def require_no_generator_function(handle: Callable[..., Any]) -> None:
    """Refuse one before anything is given to it, if that can be known."""
    for code in (handle, getattr(handle, "__call__", None)):  # noqa: B004 - the code behind the call, not whether there is one
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise TypeError(_GENERATOR_ERROR.format(handle))


def require_no_generator(result: object) -> None:
    """What a generator would have done, nobody has."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(_GENERATOR_ERROR.format(result))


def _settlement(context: RowContext, result: object) -> Settlement | None:
    if result is not None:
        require_no_generator(result)
    return None if context.settled else Settlement(context.claimed.claim, RowOutcome.DONE)
