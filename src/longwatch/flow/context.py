"""What the function of a node is told about the attempt it is, and what it can say."""

from __future__ import annotations

import logging
from collections.abc import Callable

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.engine.context import IdentifiedLogger, RowContext, UserContext

_LOGGER = logging.getLogger("longwatch.flow")


class FlowContext(UserContext):
    """One attempt. `execution` and `node` say what it computes, `deadline` until when it may.

    Code that takes long looks at `cancelled` now and then: it says stop, because the deadline has
    passed, the inputs have changed, or the worker shuts down. Once `lease_lost` is true, nothing it
    does counts any more. `beat` says that the work moves; only a node with
    `progress_timeout_seconds` has to call it.
    """

    __slots__ = ("_clock", "deadline", "diagnostics", "execution", "node", "progressed_at")

    def __init__(self, row_context: RowContext, *, deadline: Deadline, clock: Clock) -> None:
        super().__init__(row_context)
        self.execution: str = row_context.claimed.item.id
        self.node: str = row_context.claimed.item.node
        self.deadline = deadline
        self.progressed_at = clock.monotonic()
        """When it last said that it moves; from its beginning until then."""
        self.diagnostics: Callable[[], str] = str
        """For who gives it up: what can be told of where its code is; answers within a second."""
        self._clock = clock

    def beat(self, progress: object = None) -> None:
        """Say that the work moves, and with `progress` how far it is."""
        self.progressed_at = self._clock.monotonic()
        self._row_context.beat(progress)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the ids."""
        return IdentifiedLogger(
            _LOGGER, {"execution": self.execution, "node": self.node, "attempt": self.attempt}
        )
