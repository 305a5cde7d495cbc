"""What an operator can have done: by the control socket, and from code. On the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from longwatch.core.clock import Clock
from longwatch.core.events import ControlCommand, Events
from longwatch.core.nearest import did_you_mean
from longwatch.errors import StoreError, TryAgainError, UsageError
from longwatch.host.patience import settled_within
from longwatch.supervisor.lifecycle import State
from longwatch.supervisor.post import Facts, Post
from longwatch.supervisor.roster import Roster

START_TIMEOUT = 30.0
A_MOMENT = 0.3
"""Seconds that a program has to be up before we say that it is: many fail at once."""
_FAILED_TO_START = frozenset({State.WAITING, State.BROKEN, State.ENDED})
"""Where a start may lead that was no good."""


class Commands:
    """Changes what is wanted of programs and waits for it to be so.

    Each takes names, none meaning all of them, and returns the facts of those programs. `saved`
    returns when what was changed is on disk: an operator's stop survives us. `refused` says why
    nothing is done any more, if it is so.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        clock: Clock,
        events: Events,
        saved: Callable[[], Awaitable[None]],
        refused: Callable[[], str],
    ) -> None:
        self._roster = roster
        self._posts = roster.posts
        self._bulletin = roster.bulletin
        self._clock = clock
        self._events = events
        self._saved = saved
        self._refused = refused

    async def status(self, *names: str) -> list[Facts]:
        return [post.facts() for post in self._named(names)]

    async def start(
        self, *names: str, ready: bool = False, within: float = START_TIMEOUT
    ) -> list[Facts]:
        """Have them up; returns when they are, or with `ready` when they are ready.
        TryAgainError if one is not.
        """
        posts = self._told("start", names)
        before = {
            post: 0 if post.up or post.state is State.STARTING else post.program.memory.starts
            for post in posts
        }
        for post in posts:
            post.program.memory.desired = True
            if not post.up:
                post.program.reset()
            post.wish()
        return await self._come_up(before, ready=ready, within=within)

    async def stop(self, *names: str) -> list[Facts]:
        """Have them down, and keep them so; returns when they are, or somebody else has started
        them again.
        """
        posts = self._told("stop", names)
        lives = {post: post.lives for post in posts}
        for post in posts:
            post.program.memory.desired = False
            post.end_life()
        doubt = await self._save(posts)
        await self._bulletin.until(
            lambda: all(post.at_rest or post.lives > lives[post] for post in posts)
        )
        return _sure([post.facts() for post in posts], doubt)

    async def restart(
        self, *names: str, ready: bool = False, within: float = START_TIMEOUT
    ) -> list[Facts]:
        """Stop and start them, of all only those that are wanted; returns when they are up
        again.
        """
        posts = [post for post in self._told("restart", names) if names or post.desired]
        at_once = [post for post in posts if not post.plan.group]
        facts = (
            await self._restart(at_once, ready=ready, within=within) if at_once or not posts else []
        )
        for post in posts:
            if post.plan.group:  # one after another: the others go on with the work
                facts += await self._restart([post], ready=True, within=within)
        return facts

    async def _restart(self, posts: Sequence[Post], *, ready: bool, within: float) -> list[Facts]:
        before = {post: post.program.memory.starts for post in posts}
        for post in posts:
            post.program.memory.desired = True
            post.begin_anew()
        await self._bulletin.until(
            lambda: all(_is_over(post, starts) for post, starts in before.items())
        )
        return await self._come_up(before, ready=ready, within=within)

    async def reset(self, *names: str) -> list[Facts]:
        """Forget what went wrong; those that are broken or wait start now."""
        posts = self._told("reset", names)
        for post in posts:
            post.program.reset()
        return _sure([post.facts() for post in posts], await self._save(posts))

    # --- small words ---

    def _named(self, names: Sequence[str]) -> list[Post]:
        found = (
            [each for name in names for each in self._called(name)] if names else list(self._posts)
        )
        return [self._posts[name] for name in dict.fromkeys(found)]

    def _called(self, name: str) -> list[str]:
        """The program of that name, or those of the group of that name."""
        here = {known: post for known, post in self._posts.items() if not post.retired}
        if name in here:
            return [name]
        found = [known for known, post in here.items() if post.plan.group == name]
        if not found:
            raise UsageError(
                _unknown(
                    name, {*here, *(post.plan.group for post in here.values() if post.plan.group)}
                )
            )
        return found

    def _told(self, command: str, names: Sequence[str]) -> list[Post]:
        posts = self._named(names)
        if reason := self._refused():
            raise TryAgainError(reason)
        self._events.emit(
            ControlCommand(command=command, programs=tuple(post.plan.name for post in posts))
        )
        return posts

    async def _save(self, posts: Iterable[Post]) -> str:
        """Have it on disk; why it is not, if it is not."""
        for post in posts:
            self._roster.changed(post.plan.name)
        try:
            await self._saved()
        except StoreError as error:
            return str(error)
        return ""

    async def _come_up(
        self, before: Mapping[Post, int], *, ready: bool, within: float
    ) -> list[Facts]:
        """Wait until each is up after more starts than it had, or has failed to be."""
        doubt = await self._save(before)
        holds = partial(_all_settled, before, ready=ready)
        waiting = asyncio.ensure_future(self._bulletin.until(holds))
        await settled_within(waiting, within, self._clock)
        waiting.cancel()
        await self._clock.sleep(A_MOMENT)
        return _sure(_all_up(before, ready=ready), doubt)


def _sure(facts: list[Facts], doubt: str) -> list[Facts]:
    if doubt:
        raise TryAgainError(
            f"it is done, but not remembered for the next start of the supervisor: {doubt}"
        )
    return facts


def _is_over(post: Post, starts: int) -> bool:
    """Whether the run that was there is."""
    return not post.up or post.program.memory.starts > starts


def _all_settled(before: Mapping[Post, int], *, ready: bool) -> bool:
    return all(_settled(post, starts, ready=ready) for post, starts in before.items())


def _settled(post: Post, before: int, *, ready: bool) -> bool:
    """Whether it is up (or ready) since it has had more starts than before, or it is clear that
    it will not be for now.
    """
    if post.at_rest:
        return True
    if post.wished or post.program.memory.starts <= before:
        return False
    return (post.ready if ready else post.state is State.UP) or post.state in _FAILED_TO_START


def _all_up(posts: Iterable[Post], *, ready: bool) -> list[Facts]:
    late = [
        post for post in posts if not (post.program.completed or (post.ready if ready else post.up))
    ]
    if late:
        raise TryAgainError("; ".join(_why(post, ready=ready) for post in late))
    return [post.facts() for post in posts]


def _why(post: Post, *, ready: bool) -> str:
    end = post.program.memory.last_end
    name, state = post.plan.name, post.state
    if state is State.PENDING:
        return f"{name} waits for {', '.join(post.waiting_for)}"
    if state in _FAILED_TO_START and end is not None:
        return f"{name} did not stay up ({end.cause}, {state}); see `longwatch logs {name}`"
    return f"{name} is {state}{', and not ready yet' if ready else ''}"


def _unknown(name: str, known: Iterable[str]) -> str:
    listed = ", ".join(sorted(known)) or "none"
    return (
        f"no program {name!r}; {did_you_mean(name, known, otherwise=f'there are: {listed[:300]}')}"
    )
