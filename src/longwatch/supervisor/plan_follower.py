"""Switches the programs of a running supervisor to other plans, one change at a time.

New plans come from code, from the file at a reload, or from the file at an operator's reset. Used
on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ConfigReloaded, ConfigReloadRejected
from longwatch.errors import LongwatchError, TryAgainError, UsageError
from longwatch.host.blocking_call import BlockingCall
from longwatch.supervisor.plan import Plans, ProgramPlan, validate_plans
from longwatch.supervisor.program_registry import ProgramRegistry, apply_plans

T = TypeVar("T")

PLAN_READ_TIMEOUT = 300.0
"""Seconds within which the source must return the plans."""


class PlanFollower:
    """Keeps the current `plans`, by name, and changes the registry when they change.

    `source` reads the plans of the file. `refresh_source` returns the new plans, or None if they
    are unchanged. Both are called in a thread. `check_running` raises if no program may be started
    any more.
    """

    def __init__(
        self,
        plans: dict[str, ProgramPlan],
        *,
        events: Events,
        source: Callable[[], Plans] | None,
        refresh_source: Callable[[], Plans | None] | None,
        check_running: Callable[[], None],
    ) -> None:
        self.plans = plans
        self._events = events
        self._source = source
        self._refresh_source = refresh_source
        self._check_running = check_running
        self._lock = asyncio.Lock()

    async def follow(
        self, registry: ProgramRegistry, plans: dict[str, ProgramPlan]
    ) -> ConfigReloaded:
        """Switch to these plans."""
        async with self._lock:
            return await self._apply(registry, plans)

    async def reload(self, registry: ProgramRegistry) -> ConfigReloaded:
        """Read the source again and switch to its plans. An error is emitted as an event and
        raised.
        """
        if self._source is None:
            raise UsageError(
                "this supervisor got its programs from code, so there is no file to read again; "
                "call Supervisor.reload with the new plans"
            )
        async with self._lock:
            try:
                return await self._apply(registry, validate_plans(await _read(self._source)))
            except (LongwatchError, OSError) as error:
                self._events.emit(ConfigReloadRejected(reason=str(error)))
                raise

    async def reload_quietly(self, registry: ProgramRegistry) -> None:
        """Like `reload`, but an error is only emitted."""
        with suppress(LongwatchError, OSError):
            await self.reload(registry)

    async def refresh(self, registry: ProgramRegistry) -> None:
        """Switch to the plans that the files of containers contain now."""
        if self._refresh_source is None:
            return
        async with self._lock:
            plans = await _read(self._refresh_source)
            if plans is not None and (found := validate_plans(plans)) != self.plans:
                await self._apply(registry, found)

    async def _apply(
        self, registry: ProgramRegistry, plans: dict[str, ProgramPlan]
    ) -> ConfigReloaded:
        """Apply the plans under the lock: two calls at once could add the same program twice."""
        self._check_running()
        changes = await apply_plans(registry, plans, check_running=self._check_running)
        self.plans = plans
        self._events.emit(changes)
        return changes


async def _read(source: Callable[[], T]) -> T:
    """Call the source in a thread, because it may block while programs end."""
    question = BlockingCall(source, name="longwatch-plan-reader", timeout=PLAN_READ_TIMEOUT)
    try:
        return await question.run()
    except TimeoutError:
        raise TryAgainError(
            f"the settings could not be read within {PLAN_READ_TIMEOUT:g} s; the programs keep "
            f"the former ones"
        ) from None
    finally:
        question.close()
