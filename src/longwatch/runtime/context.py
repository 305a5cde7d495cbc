"""The context of a handler: the message it works on, and the calls it may make."""

from __future__ import annotations

import logging
from typing import Any

from longwatch.core.deadline import Deadline
from longwatch.engine.context import IdentifiedLogger, RowContext, UserContext
from longwatch.mailbox.headers import decode_headers
from longwatch.runtime.request import MainLoopRequest

_LOGGER = logging.getLogger("longwatch.runtime.handler")


class MainLoopContext(UserContext):
    """The context of one run of a handler. `request_id`, `message_id` and `trace` identify its
    message, `headers` are those of the message, `deadline` limits its time.

    Code that takes long calls `beat` and checks `cancelled` now and then. `cancelled` is true when
    the process shuts down, the lease is lost, or the deadline has passed. Once `lease_lost` is
    true, the result of the handler does not count.
    """

    __slots__ = ("_headers", "_loop", "deadline", "message_id", "request_id", "trace")

    def __init__(
        self,
        row_context: RowContext,
        request: MainLoopRequest[Any],
        *,
        loop: str,
        deadline: Deadline,
    ) -> None:
        super().__init__(row_context)
        self.request_id = request.request_id
        self.message_id: str = row_context.claimed.item.id
        self.trace = request.trace
        self.deadline = deadline
        self._headers: dict[str, str] | None = None
        self._loop = loop

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the message. Decoded at their first use."""
        if self._headers is None:
            self._headers = decode_headers(self._row_context.claimed.item.headers)
        return self._headers

    def beat(self, progress: object = None) -> None:
        """Report that the work is alive, and with `progress` how far it is."""
        self._row_context.beat(progress)

    @property
    def cancelled(self) -> bool:
        return super().cancelled or self.deadline.expired

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have the ids of the message."""
        ids = {
            "loop": self._loop,
            "request_id": self.request_id,
            "message_id": self.message_id,
            "attempt": self.attempt,
        }
        return IdentifiedLogger(_LOGGER, ids)
