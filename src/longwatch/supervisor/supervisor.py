"""Several programs, kept up together: as a service of any process, and behind `longwatch up` and
`longwatch run`.

The way of a supervisor: claim the state directory → read the ledger → start the guardian → open the
control socket → wish every program up that is desired → … → stop them, dependents first, under one
deadline → stop the guardian → write the ledger. Everything but the public methods happens on one
loop, so nothing here is locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.endcause import EndCause
from longwatch.core.events import (
    Event,
    Events,
    PlanReloaded,
    ProgramEnded,
    ReloadRefused,
    StopsRemembered,
)
from longwatch.errors import LongwatchError, ServiceStateError, TryAgainError, UsageError
from longwatch.host.asking import Question
from longwatch.host.children import Guardian
from longwatch.host.loop import LoopThread
from longwatch.host.process import KILL_NOW, StopPolicy
from longwatch.host.service import Service
from longwatch.supervisor.closing import close
from longwatch.supervisor.commands import START_TIMEOUT, Commands
from longwatch.supervisor.dependencies import problems
from longwatch.supervisor.memory import Memory
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.post import Facts, Post
from longwatch.supervisor.program import NEEDS_PERSON, Streams
from longwatch.supervisor.reloading import reload
from longwatch.supervisor.rendezvous import Rendezvous
from longwatch.supervisor.requests import Requests
from longwatch.supervisor.roster import Roster
from longwatch.supervisor.statefiles import StateFiles

T = TypeVar("T")
Plans = Iterable[ProgramPlan]

HASTY_GRACE = 0.7
"""What is left to the others when a critical program has broken: all is over within a second."""
MONTH = 30 * 86_400.0
READING = 300.0
"""Seconds that the source of plans may take."""
_A_FEW = 10


def inherited(_: ProgramPlan) -> Streams:
    """Output goes where this process's own goes."""
    return Streams()


class Supervisor(Service):
    """Keeps programs up in the background of this process.

    `start` starts what is wanted; `stop` ends it all; `wait` returns when it has come to its end by
    itself: because a critical program is broken or has failed for good (100), the `leader` has
    ended (its code), or the guardian was lost (GuardianLostError). In between `status`,
    `start_programs`, `stop_programs`, `restart_programs`, `reset_programs` and `reload` may be
    called from any thread.

    With a `state` directory, what is remembered of programs survives this process, and `longwatch
    status` and its like can reach it; one supervisor a directory. `source` gives the plans anew
    when somebody asks for a reload, and `about` is what more `longwatch status --json` says of the
    supervisor. `adopt` makes this process inherit orphans: for processes of our own. `guarded` is
    called once the guardian runs, before anything else is opened: what is changed there is not
    inherited by programs.
    """

    def __init__(  # noqa: PLR0913 - each is optional and has its own meaning
        self,
        plans: Plans,
        *,
        state: Path | None = None,
        streams: Callable[[ProgramPlan], Streams] = inherited,
        events: Events | None = None,
        clock: Clock | None = None,
        leader: str | None = None,
        source: Callable[[], Plans] | None = None,
        shutdown_timeout: float | None = None,
        forget_after: float = MONTH,
        about: Mapping[str, str] | None = None,
        guarded: Callable[[], None] = lambda: None,
        adopt: bool = False,
        cgroups: bool = True,
    ) -> None:
        self.clock = clock or SystemClock()
        super().__init__(name="supervisor", clock=self.clock)
        self.events = events or Events()
        self.events.subscribe(self._count_kills)
        self.state = state
        self.loop = LoopThread(clock=self.clock)
        self.guardian = Guardian(
            self.loop, clock=self.clock, events=self.events, adopt=adopt, cgroups=cgroups
        )
        self._plans = checked(plans)
        self._leader = leader
        self._source = source
        self._shutdown_timeout = shutdown_timeout
        self._forget_after = forget_after
        self._about = about or {}
        self._guarded = guarded
        self._files: StateFiles | None = None
        self._rendezvous: Rendezvous | None = None
        self._roster = Roster(
            guardian=self.guardian,
            clock=self.clock,
            events=self.events,
            streams=streams,
            note=self._note,
            after_life=self._after_life,
            failed=self._fail,
        )
        self._begin_count()
        self.commands = Commands(
            self._roster,
            clock=self.clock,
            events=self.events,
            saved=self._saved,
            refused=lambda: "the supervisor is shutting down" if self._ending is not None else "",
        )

    def _begin_count(self) -> None:
        """What belongs to one start of the supervisor."""
        self._over = Wakeup()
        self._reloading = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._killed = 0
        self._exit_code: int | None = None
        self._error: BaseException | None = None

    # --- from any thread ---

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; the exit code to pass on, None if the timeout passes first. Raises
        what brought the end about.
        """
        if not self.clock.wait(self._over, timeout):
            return None
        if self._error is not None:
            raise self._error
        return int(self._killed > 0) if self._exit_code is None else self._exit_code

    def status(self, *names: str) -> list[Facts]:
        """The facts of these programs, or of all."""
        return self._call(self.commands.status(*names))

    def start_programs(
        self, *names: str, ready: bool = False, timeout: float = START_TIMEOUT
    ) -> list[Facts]:
        """Have them up; TryAgainError if one is not in time."""
        return self._call(self.commands.start(*names, ready=ready, within=timeout))

    def stop_programs(self, *names: str) -> list[Facts]:
        """Have them down until somebody starts them again, also after a restart of the
        supervisor.
        """
        return self._call(self.commands.stop(*names))

    def restart_programs(
        self, *names: str, ready: bool = False, timeout: float = START_TIMEOUT
    ) -> list[Facts]:
        """Stop and start them; TryAgainError if one is not up again in time."""
        return self._call(self.commands.restart(*names, ready=ready, within=timeout))

    def reset_programs(self, *names: str) -> list[Facts]:
        """Forget what went wrong with them; those that are broken start."""
        return self._call(self.commands.reset(*names))

    def reload(self, plans: Plans) -> PlanReloaded:
        """Follow other plans: start what is new, stop what is gone, start anew what changed,
        leave alone the rest.
        """
        return self._call(self._reload(checked(plans)))

    def shut_down(self, policy: StopPolicy | None = None) -> None:
        """Begin to stop everything; `wait` tells when it is done. With a policy, by that instead
        of each program's own.
        """
        self._soon(lambda: self._end(policy=policy))

    def kill(self) -> None:
        """Kill everything, now."""
        self._soon(lambda: self._end(policy=KILL_NOW, again=True))

    def condemn(self, pid: int, reason: str) -> None:
        """Kill the program whose process that is, as one that failed its health checks: it
        starts again by its policy.
        """
        self._soon(lambda: self._roster.condemn(pid, reason))

    def limit_shutdown(self, seconds: float | None) -> None:
        """How long a shutdown may take from now on; None: every program has its own grace."""
        self._shutdown_timeout = seconds

    def signal(self, signum: int) -> None:
        """Pass a signal on to every program's process group."""
        self._soon(lambda: self._roster.signal(signum))

    def reload_source(self) -> None:
        """Read the source of plans again and follow it; what is wrong with it is told as an
        event.
        """
        if self.loop.started:
            self.loop.spawn(self._reload_or_tell())

    # --- the service contract ---

    @property
    def inside(self) -> bool:
        return self.loop.inside

    def _start(self) -> None:
        self._begin_count()
        with ExitStack() as undo:
            memories: Mapping[str, Memory] = {}
            if self.state is not None:
                self._files = StateFiles(self.state, clock=self.clock, events=self.events)
                undo.callback(self._close_files, Deadline.never(self.clock))
                memories = self._files.open(self._plans, forget_after=self._forget_after)
            self._rendezvous = Rendezvous.make()
            undo.callback(self._leave)
            undo.callback(self.loop.stop)
            self.guardian.start()
            undo.callback(self.guardian.stop)
            self._guarded()
            self.loop.call(self._begin(memories), timeout=START_TIMEOUT)
            undo.pop_all()

    def _stop(self, deadline: Deadline) -> bool:
        """Stop the programs with what grace there is, then what held them."""
        if not self._over.is_set():
            self.loop.call(self._finish(deadline), timeout=None)
        gone = self.guardian.stop(deadline=deadline)
        if self.loop.started:
            self.loop.call(self._leave_loop(), timeout=None)
        gone = self.loop.stop(deadline=deadline) and gone
        self._close_files(deadline)
        self._leave()
        return gone

    def _close_files(self, deadline: Deadline) -> None:
        if self._files is not None:
            self._files.close(deadline)
            self._files = None

    def _leave(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    # --- on the loop: from the beginning to the end ---

    async def _begin(self, memories: Mapping[str, Memory]) -> None:
        assert self._rendezvous is not None
        self._roster.posts.clear()
        self._roster.memories = dict(memories)
        self._roster.address = self._rendezvous.address
        if self._files is not None:
            state = self._files.state.absolute()
            requests = Requests(
                self.commands,
                self._reload_from_source,
                state,
                self.guardian,
                clock=self.clock,
                about=self._about,
            )
            await self._files.listen(self._rendezvous.path / "control", requests.answer)
        for number, plan in enumerate(self._plans.values(), 1):
            self._roster.add(
                self._roster.prepare(plan), strict=plan.name == self._leader
            ).follow_desire()
            if not number % _A_FEW:
                await asyncio.sleep(0)  # the guardian starts these while we get the next ones ready
        if stopped := tuple(
            name
            for name, post in self._roster.posts.items()
            if post.program.memory.desired is False
        ):
            self.events.emit(StopsRemembered(programs=stopped))

    def _after_life(self, post: Post, code: int) -> None:
        if post.plan.name == self._leader:
            self._end(code)
        elif post.plan.critical and (code == NEEDS_PERSON or post.program.failed):
            self._end(NEEDS_PERSON, within=HASTY_GRACE)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._over.set()

    def _end(
        self,
        code: int | None = None,
        *,
        policy: StopPolicy | None = None,
        within: float | None = None,
        again: bool = False,
    ) -> None:
        """Begin the end; a second time only to hasten it."""
        if self._ending is not None:
            if not again:
                return
            self._ending.cancel()
        else:
            self._exit_code = code
        self._ending = asyncio.ensure_future(
            self._close_programs(policy, self._shutdown_timeout if within is None else within)
        )

    async def _close_programs(self, policy: StopPolicy | None, within: float | None) -> None:
        try:
            await close(
                self._roster.posts,
                self._roster.bulletin,
                policy=policy,
                within=within,
                clock=self.clock,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the end must hear of it
            self._fail(error)
        if self._exit_code is None and self._leader is not None:
            self._exit_code = self._code_of_leader(policy)
        self._over.set()

    def _code_of_leader(self, policy: StopPolicy | None) -> int:
        """That of its last life; of the signal that came before its first."""
        post = self._roster.posts[self._leader or ""]
        unborn = EndCause.signal((policy or post.plan.stop).signal).exit_code
        return unborn if post.exit_code is None else post.exit_code

    async def _finish(self, deadline: Deadline) -> None:
        """End, with no more grace than there is time."""
        self._end()
        left = deadline.remaining()
        assert self._ending is not None
        done, _ = await asyncio.wait(
            {self._ending}, timeout=None if left is None else max(left - HASTY_GRACE, 0.0)
        )
        if not done:
            self._end(policy=KILL_NOW, again=True)
            with suppress(asyncio.CancelledError):
                await self._ending

    async def _leave_loop(self) -> None:
        self._roster.close()
        if self._files is not None:
            await self._files.hang_up()

    # --- on the loop: what is remembered, and other plans ---

    def _note(self, name: str, memory: Memory) -> None:
        if self._files is not None:
            self._files.note(name, memory)

    async def _saved(self) -> None:
        if self._files is not None:
            await self._files.saved()

    async def _reload_or_tell(self) -> None:
        with suppress(LongwatchError, OSError):
            await self._reload_from_source()

    async def _reload_from_source(self) -> PlanReloaded:
        if self._source is None:
            raise UsageError(
                "this supervisor was given its programs by code; there is no file to read again"
            )
        async with self._reloading:
            try:
                return await self._follow(checked(await self._read_source(self._source)))
            except (LongwatchError, OSError) as error:
                self.events.emit(ReloadRefused(reason=str(error)))
                raise

    async def _read_source(self, source: Callable[[], Plans]) -> Plans:
        """In a thread of its own: it may take its time, and programs end meanwhile."""
        question = Question(source, name="longwatch-reads-plans", within=READING)
        try:
            return await question.ask()
        except TimeoutError:
            raise TryAgainError(
                f"the settings could not be read within {READING:g} s; everything goes on as it was"
            ) from None
        finally:
            question.close()

    async def _reload(self, plans: dict[str, ProgramPlan]) -> PlanReloaded:
        async with self._reloading:
            return await self._follow(plans)

    async def _follow(self, plans: dict[str, ProgramPlan]) -> PlanReloaded:
        """One at a time: two at once would give a program that leaves and comes back two posts."""
        self._check_not_ending()
        told = await reload(self._roster, plans, go_on=self._check_not_ending)
        self._plans = plans
        self.events.emit(told)
        return told

    def _check_not_ending(self) -> None:
        if self._ending is not None:
            raise ServiceStateError("the supervisor is shutting down")

    # --- small words ---

    def _count_kills(self, event: Event) -> None:
        if isinstance(event, ProgramEnded) and self._ending is not None:
            self._killed += event.killed

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.started:
            work.close()
            raise ServiceStateError("the supervisor is not running; start() it first")
        return self.loop.call(work, timeout=None)

    def _soon(self, act: Callable[[], object]) -> None:
        if self.loop.started:
            self.loop.loop().call_soon_threadsafe(act)


def checked(plans: Plans) -> dict[str, ProgramPlan]:
    """The plans by name; UsageError with everything that is wrong with them together."""
    found: dict[str, ProgramPlan] = {}
    for plan in plans:
        if plan.name in found:
            raise UsageError(
                f"two programs are called {plan.name!r}; give one of them another name"
            )
        found[plan.name] = plan
    if wrong := problems({name: plan.depends_on for name, plan in found.items()}):
        raise UsageError(
            "\n".join(
                f"program {problem.program!r} {problem.problem}; {problem.cure}"
                for problem in wrong
            )
        )
    return found
