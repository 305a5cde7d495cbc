"""What the code that runs a row may say besides how to settle it: that it is settled, or that
something has to be awaited first.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

from longwatch.work.context import WorkContext
from longwatch.work.coroutines import Coroutines
from longwatch.work.judging import NotBegunError
from longwatch.work.source import Outcome, Settlement


class Settled(NamedTuple):
    """The row is settled already, in this way: it only has to be counted."""

    outcome: Outcome


Answer = Settlement | Settled | None


class Pending:
    """What is awaited on the engine's loop thread, and what then is done with its result, in the
    slot's thread again.

    `failed` is told what it raised, before that is judged.
    """

    def __init__(
        self,
        work: Awaitable[Any],
        conclude: Callable[[Any], Answer],
        *,
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self._work = _Whole(work)
        self._conclude = conclude
        self._failed = failed

    def settled(self, coroutines: Coroutines, context: WorkContext) -> Answer:
        """Wait for it, and conclude."""
        try:
            result = coroutines.run(self._work, context)
        except NotBegunError:
            raise
        except BaseException as error:
            self._failed(error)
            raise
        return self._conclude(result)


class _Whole(Awaitable[Any]):
    """What user code returned to be awaited, and what that returned to be awaited in turn."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._awaited().__await__()

    def close(self) -> None:
        """It will not be awaited."""
        if (close := getattr(self._work, "close", None)) is not None:
            close()

    async def _awaited(self) -> Any:
        result: Any = self._work
        while inspect.isawaitable(result):
            result = await result
        return result
