"""Work that has to be awaited before its row can be settled."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from longwatch.work.context import WorkContext
from longwatch.work.coroutines import Coroutines
from longwatch.work.judging import NotBegunError
from longwatch.work.source import Settlement


class Pending:
    """What is awaited on the engine's loop thread, and what then is done with its result, in the slot's thread again.

    `failed` is told what it raised, before that is judged.
    """

    def __init__(
        self,
        work: Awaitable[Any],
        conclude: Callable[[Any], Settlement | None],
        *,
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self._work = _Whole(work)
        self._conclude = conclude
        self._failed = failed

    def settled(self, coroutines: Coroutines, context: WorkContext) -> Settlement | None:
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
