"""The programs of a supervisor, each at its post: who comes, who goes, and what becomes of their
memory. On the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from longwatch.core.clock import Clock
from longwatch.core.events import Events
from longwatch.host.children import Guardian
from longwatch.supervisor.bulletin import Bulletin
from longwatch.supervisor.memory import Memory
from longwatch.supervisor.notify import Notice, NotifySocket
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.post import Post
from longwatch.supervisor.program import Program, Streams

Address = Callable[[str, int | None], Path]
"""Where a socket of that name may be, for a process of that user."""


class Prepared(NamedTuple):
    """A plan, and what it takes to follow it."""

    plan: ProgramPlan
    streams: Streams
    address: Path | None
    """Where it may speak to us; None: where it does already."""


class Roster:
    """Posts by name. `note` is told whenever what is remembered of a program may have changed;
    `after_life` when one has lived; `failed` when one could not, which is the end of everything.
    """

    def __init__(  # noqa: PLR0913 - what a program lives among, each by name
        self,
        *,
        guardian: Guardian,
        clock: Clock,
        events: Events,
        streams: Callable[[ProgramPlan], Streams],
        note: Callable[[str, Memory], None],
        after_life: Callable[[Post, int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.posts: dict[str, Post] = {}
        self.memories: dict[str, Memory] = {}
        """What is remembered of programs that are not here now, and may come."""
        self.bulletin = Bulletin()
        self.address: Address = lambda name, _: Path(name)
        self._guardian = guardian
        self._clock = clock
        self._events = events
        self._streams = streams
        self._note = note
        self._after_life = after_life
        self._failed = failed
        self._sockets: dict[str, NotifySocket] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._number = 0

    def add(self, prepared: Prepared, *, strict: bool = False) -> Post:
        """Give a program its place."""
        plan = prepared.plan
        assert prepared.address is not None
        program = Program(
            plan,
            guardian=self._guardian,
            clock=self._clock,
            events=self._events,
            streams=prepared.streams,
            memory=self.memories.pop(plan.name, None),
            notify=self._listen(plan, prepared.address),
            changed=partial(self.changed, plan.name),
            strict=strict,
        )
        post = Post(program, posts=self.posts, bulletin=self.bulletin, clock=self._clock)
        self.posts[plan.name] = post
        self._tasks[plan.name] = task = asyncio.ensure_future(post.keep(self._after_life))
        task.add_done_callback(partial(self._kept, plan.name))
        return post

    def prepare(self, plan: ProgramPlan) -> Prepared:
        """Make what a plan needs of the machine, and change nothing yet: what cannot be had is
        told before anybody is touched.
        """
        return Prepared(plan, self._streams(plan), self._address_for(plan))

    def _address_for(self, plan: ProgramPlan) -> Path | None:
        """A new one; None for a program that can keep the one it has."""
        present = self.posts.get(plan.name)
        if (
            present is not None
            and not present.retired
            and present.plan.process.identity == plan.process.identity
        ):
            return None
        self._number += 1
        return self.address(
            f"n{self._number}", plan.process.identity.uid if plan.process.identity else None
        )

    def take_over(self, post: Post, prepared: Prepared) -> None:
        """Have a program follow another plan."""
        plan = prepared.plan
        if prepared.address is not None:
            self._sockets.pop(plan.name).close()
            post.program.notify = self._listen(plan, prepared.address)
        post.program.follow(plan)
        post.program.streams = prepared.streams
        self.bulletin.post()

    async def retire(self, names: Iterable[str]) -> None:
        """Have these leave: each when its present life is over."""
        leaving = [self.posts[name] for name in names]
        for post in leaving:
            post.retired = True
            post.end_life()
        self.bulletin.post()
        await self.bulletin.until(lambda: not any(post in self.posts.values() for post in leaving))

    def changed(self, name: str) -> None:
        """Something about a program is another than before."""
        self.bulletin.post()
        if name in self.posts:
            self._note(name, self.posts[name].program.memory)

    def signal(self, signum: int) -> None:
        """Pass a signal on to every program's process group."""
        for post in self.posts.values():
            post.program.signal(signum)

    def condemn(self, pid: int, reason: str) -> None:
        """Kill the program whose process that is."""
        for post in self.posts.values():
            run = post.program.run
            if run is not None and run.child.pid == pid:
                run.condemn(reason)

    def close(self) -> None:
        """Nobody keeps anything any more; for when all is at rest, or lost."""
        for task in self._tasks.values():
            task.cancel()
        for socket in self._sockets.values():
            socket.close()
        self._tasks.clear()
        self._sockets.clear()

    def _listen(self, plan: ProgramPlan, address: Path) -> NotifySocket:
        uid = plan.process.identity.uid if plan.process.identity else None
        socket = NotifySocket(address, partial(self._hear, plan.name), uid=uid)
        socket.open()
        self._sockets[plan.name] = socket
        return socket

    def _hear(self, name: str, notice: Notice) -> None:
        if name in self.posts:
            self.posts[name].program.hear(notice)

    def _kept(self, name: str, task: asyncio.Task[None]) -> None:
        """A post was left: because everything ends, because its program was retired, or by an
        error that ends everything.
        """
        if task.cancelled():
            return
        if error := task.exception():
            self._failed(error)
        else:
            self._remove(name)

    def _remove(self, name: str) -> None:
        self.memories[name] = self.posts.pop(name).program.memory
        self._tasks.pop(name)
        self._sockets.pop(name).close()
        self.bulletin.post()
