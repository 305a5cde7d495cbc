"""Other plans for a supervisor that runs: only what changed is touched. On the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longwatch.core.events import PlanReloaded
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.roster import Roster


async def reload(
    roster: Roster, plans: Mapping[str, ProgramPlan], *, go_on: Callable[[], None]
) -> PlanReloaded:
    """Stop what is in no plan any more, start anew what has to be, change the rest as it runs, then
    start what is new.

    What the new plans need of the machine is made first: if it cannot be had, nothing is changed.
    `go_on` is asked once what leaves has left, which may take its time; it raises when nothing is
    to be started any more.
    """
    told = difference(
        {name: post.plan for name, post in roster.posts.items() if not post.retired}, plans
    )
    prepared = {
        name: roster.prepare(plans[name]) for name in (*told.changed, *told.updated, *told.added)
    }
    await roster.retire(told.removed)
    go_on()
    for name in (*told.changed, *told.updated):
        post = roster.posts[name]
        roster.take_over(post, prepared[name])
        if name in told.changed and post.desired:
            post.begin_anew()
    for name in told.added:
        roster.add(prepared[name]).follow_desire()
    return told


def difference(known: Mapping[str, ProgramPlan], plans: Mapping[str, ProgramPlan]) -> PlanReloaded:
    """What is to be done to come from the plans that are known to others."""
    other = [name for name in plans if name in known and plans[name] != known[name]]
    anew = [name for name in other if known[name].needs_restart(plans[name])]
    return PlanReloaded(
        added=tuple(name for name in plans if name not in known),
        changed=tuple(anew),
        updated=tuple(name for name in other if name not in anew),
        removed=tuple(name for name in known if name not in plans),
    )
