"""A mailbox's messages through the engine: the user's function on one side, settlements on the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from longwatch.errors import SerializationError
from longwatch.mailbox.letters import Delivery
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message
from longwatch.work.context import WorkContext
from longwatch.work.source import Leased, Outcome, Settlement

BodyT = TypeVar("BodyT")


class WorkedMessage(Message[BodyT]):
    """A message in the hands of the engine. If the user's code settles it by itself, the engine has nothing more to say."""

    __slots__ = ("_context",)

    def __init__(self, mailbox: Mailbox[BodyT], delivery: Delivery, body: BodyT, context: WorkContext) -> None:
        super().__init__(mailbox, context.leased.claim, delivery, body)
        self._context = context

    def finalize(self) -> None:
        super().finalize()
        self._context.settled = True


class MessageRunner:
    """Decodes a message, gives it to `handle(message, context)`, and acknowledges it when that returns.

    A body that cannot be read is dead at once. What `handle` raises is the engine's to judge: a failure, tried again later. An
    `async def` handle is run on the engine's loop, and is cancelled there when its context is.
    """

    def __init__(self, mailbox: Mailbox[BodyT], handle: Callable[[Message[BodyT], WorkContext], Any]) -> None:
        self._mailbox = mailbox
        self._handle = handle

    def __call__(self, leased: Leased, context: WorkContext) -> Coroutine[Any, Any, Settlement | None] | Settlement | None:
        try:
            body = self._mailbox.decode(leased.item)
        except SerializationError as error:
            return Settlement(leased.claim, Outcome.DEAD, reason="undecodable", error=str(error))
        result = self._handle(WorkedMessage(self._mailbox, leased.item, body, context), context)
        if result is not None and inspect.iscoroutine(result):
            return _awaited(result, context)
        return _settlement(context)


async def _awaited(work: Coroutine[Any, Any, Any], context: WorkContext) -> Settlement | None:
    await work
    return _settlement(context)


def _settlement(context: WorkContext) -> Settlement | None:
    return None if context.settled else Settlement(context.leased.claim, Outcome.DONE)
