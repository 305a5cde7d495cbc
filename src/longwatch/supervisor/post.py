"""A program's place in the supervisor: what is wanted of it, what it waits for, and what is told
of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

from longwatch.core.clock import Clock
from longwatch.supervisor.bulletin import Bulletin
from longwatch.supervisor.conditions import Condition
from longwatch.supervisor.lifecycle import State
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program import Program

Facts = dict[str, Any]


class Posts(Protocol):
    """What a post knows of the others."""

    def __getitem__(self, name: str) -> Post: ...

    def __contains__(self, name: object) -> bool: ...


class Post:
    """Keeps a program alive for as long as somebody wants it: every wish to start is one life. Used
    on the loop.

    `desired` is the durable wish, and `wished` the wish that has not been followed yet: a program
    that has ended by itself is still desired, and not started again for that.
    """

    def __init__(self, program: Program, *, posts: Posts, bulletin: Bulletin, clock: Clock) -> None:
        self.program = program
        self.wished = False
        self.living = False
        self.lives = 0
        self.retired = False
        """Whether it has no place any more, and ends with its present life."""
        self.exit_code: int | None = None
        """Of its last life."""
        self._posts = posts
        self._bulletin = bulletin
        self._clock = clock

    @property
    def plan(self) -> ProgramPlan:
        return self.program.plan

    @property
    def state(self) -> State:
        return self.program.state

    @property
    def desired(self) -> bool:
        said = self.program.memory.desired
        return self.plan.autostart if said is None else said

    @property
    def up(self) -> bool:
        return self.program.run is not None

    @property
    def ready(self) -> bool:
        return self.program.run is not None and self.program.run.ready

    @property
    def at_rest(self) -> bool:
        return not (self.living or self.wished)

    async def keep(self, after_life: Callable[[Post, int], None]) -> None:
        """Every life it is wished, one after the other, until it is retired."""
        while True:
            await self._bulletin.until(lambda: self.wished or self.retired)
            if self.retired:
                return
            self.wished, self.living = False, True
            self.lives += 1
            try:
                self.exit_code = await self.program.live(self._gate)
            finally:
                self.living = False
                self.announce()
            after_life(self, self.exit_code)

    def wish(self) -> None:
        """Have it up, whatever kept it from that; one that is being stopped lives once more."""
        if self.living and not self.program.unwanted:
            self.program.reset()
        else:
            self.wished = True
            self.announce()

    def follow_desire(self) -> None:
        """Wish it up if somebody wants it up."""
        if self.desired:
            self.wish()

    def end_life(self) -> None:
        """End its present life, if it has one, and wish no other."""
        self.wished = False
        if self.living:
            self.program.stop(shutting_down=False)

    def begin_anew(self) -> None:
        """Whatever it does, another life after that, with nothing remembered against it."""
        self.program.reset()
        if self.living:
            self.program.stop(shutting_down=False)
        self.wished = True
        self.announce()

    def announce(self) -> None:
        """Something about it has changed."""
        self._bulletin.post()

    # --- what it waits for ---

    def satisfies(self, condition: Condition) -> bool:
        """Whether who waits for this in it need not wait any longer."""
        match condition:
            case Condition.STARTED:
                return self.up
            case Condition.READY:
                return self.ready
            case Condition.COMPLETED:
                return self.program.completed

    @property
    def waiting_for(self) -> list[str]:
        """What is not there yet of what it depends on."""
        return [
            f"{name}: {condition}"
            for name, condition in self.plan.depends_on.items()
            if name not in self._posts or not self._posts[name].satisfies(condition)
        ]

    async def _gate(self) -> None:
        await self._bulletin.until(lambda: not self.waiting_for)

    # --- what is told of it ---

    def facts(self) -> Facts:
        """For `status`, the page and whoever asks; plain JSON types."""
        program, run, memory = self.program, self.program.run, self.program.memory
        return {
            "name": self.plan.name,
            "state": self.state.value,
            "desired": "up" if self.desired else "stopped",
            "up": self.up,
            "ready": self.ready,
            "pid": run.child.pid if run else None,
            "last_start": memory.last_start,
            "uptime": run.age if run else None,
            "consecutive_failures": program.backoff.failures,
            "restart_history": list(memory.history),
            "total_restarts": memory.restarts,
            "current_backoff": program.plan.backoff.delay(program.backoff.failures),
            "next_start": program.next_start,
            "health_failures": run.health_failures if run else 0,
            "breaker": self._breaker_facts(),
            "last_end": memory.last_end._asdict() if memory.last_end else None,
            "waiting_for": self.waiting_for if self.state is State.PENDING else [],
            "status_text": run.status_text if run else "",
            "critical": self.plan.critical,
        }

    def _breaker_facts(self) -> Facts:
        breaker, now = self.program.breaker, self._clock.wall()
        left = breaker.cooldown_left(now)
        shown = left if left is None or isfinite(left) else None
        return {"phase": breaker.phase(now).value, "reason": breaker.reason, "cooldown_left": shown}
