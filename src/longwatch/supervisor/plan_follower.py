"""Has the programs of a supervisor follow other plans while it runs: given by code, read again
from the file, or read again for an operator's reset. One change at a time, on the loop.
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
"""Seconds that the source of plans may take."""


class PlanFollower:
    """Keeps the present `plans`, by name, and changes the registry when they change.

    `source` reads the plans of the file; `refresh_source` returns those that hold now, None for the
    present ones. Both are called in a thread. `check_running` raises when nothing is to be started
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
        """Follow these plans."""
        async with self._lock:
            return await self._apply(registry, plans)

    async def reload(self, registry: ProgramRegistry) -> ConfigReloaded:
        """Read the source again and follow it; what is wrong with it is emitted and raised."""
        if self._source is None:
            raise UsageError(
                "this supervisor was given its programs by code; there is no file to read again"
            )
        async with self._lock:
            try:
                return await self._apply(registry, validate_plans(await _read(self._source)))
            except (LongwatchError, OSError) as error:
                self._events.emit(ConfigReloadRejected(reason=str(error)))
                raise

    async def reload_quietly(self, registry: ProgramRegistry) -> None:
        """As `reload`; what is wrong is only emitted."""
        with suppress(LongwatchError, OSError):
            await self.reload(registry)

    async def refresh(self, registry: ProgramRegistry) -> None:
        """Follow what the files of containers say now."""
        if self._refresh_source is None:
            return
        async with self._lock:
            plans = await _read(self._refresh_source)
            if plans is not None and (found := validate_plans(plans)) != self.plans:
                await self._apply(registry, found)

    async def _apply(
        self, registry: ProgramRegistry, plans: dict[str, ProgramPlan]
    ) -> ConfigReloaded:
        """One at a time: two at once would add a program that leaves and comes back twice."""
        self._check_running()
        changes = await apply_plans(registry, plans, check_running=self._check_running)
        self.plans = plans
        self._events.emit(changes)
        return changes


async def _read(source: Callable[[], T]) -> T:
    """In a thread of its own: it may take its time, and programs end meanwhile."""
    question = BlockingCall(source, name="longwatch-plan-reader", timeout=PLAN_READ_TIMEOUT)
    try:
        return await question.run()
    except TimeoutError:
        raise TryAgainError(
            f"the settings could not be read within {PLAN_READ_TIMEOUT:g} s; everything "
            f"goes on as it was"
        ) from None
    finally:
        question.close()
