"""What user code is told about the row it works on, whatever the row is."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from longwatch.core.cancel import CancelToken
from longwatch.work.context import WorkContext


class UserContext:
    """The part of a `WorkContext` that is for users."""

    __slots__ = ("_work",)

    def __init__(self, work: WorkContext) -> None:
        self._work = work

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._work.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with every attempt; give it to systems that can refuse a smaller one."""
        return self._work.fencing_token

    @property
    def lease_lost(self) -> bool:
        """Whether nothing that the code does counts any more."""
        return self._work.lease_lost

    @property
    def cancelled(self) -> bool:
        """Whether it should stop."""
        return self._work.cancelled

    @property
    def cancel(self) -> CancelToken:
        """What to wait for, or to pass on, to be stopped in time."""
        return self._work.cancel


class IdentifiedLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds ids to whatever the caller adds to a record."""

    def __init__(self, logger: logging.Logger, ids: Mapping[str, object]) -> None:
        super().__init__(logger, ids)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
