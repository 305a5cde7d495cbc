"""The end of a supervisor's programs: dependents before what they depend on, each with its
grace, all under one deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.host.patience import settled_within
from longwatch.host.process import StopPolicy
from longwatch.supervisor.bulletin import Bulletin
from longwatch.supervisor.dependencies import problems, waves
from longwatch.supervisor.post import Post


async def close(
    posts: Mapping[str, Post],
    bulletin: Bulletin,
    *,
    policy: StopPolicy | None,
    within: float | None,
    clock: Clock,
) -> None:
    """Stop everything, wave by wave; with a policy by that one, else each by its own. What is
    there after `within` is killed.
    """
    deadline = Deadline.after(within, clock)
    for wave in reversed(_waves(posts)):
        leaving = [posts[name] for name in wave if name in posts]
        for post in leaving:
            post.wished = False
            if post.living:
                post.program.stop(_capped(policy or post.plan.stop, deadline))
        await _at_rest(leaving, bulletin, deadline)


def _waves(posts: Mapping[str, Post]) -> list[list[str]]:
    """All at once where a reload that did not come to its end has left them waiting for each
    other.
    """
    wishes = {name: post.plan.depends_on for name, post in posts.items()}
    return [list(posts)] if problems(wishes) else waves(wishes)


async def _at_rest(posts: list[Post], bulletin: Bulletin, deadline: Deadline) -> None:
    """Wait for them; a program that was given more time than there is has to go all the same."""
    waiting = asyncio.ensure_future(bulletin.until(lambda: all(post.at_rest for post in posts)))
    left = deadline.remaining()
    try:
        if left is not None and not await settled_within(waiting, left, deadline.clock):
            for post in posts:
                if post.living:
                    post.program.kill()
        await waiting
    finally:
        waiting.cancel()


def _capped(policy: StopPolicy, deadline: Deadline) -> StopPolicy:
    left = deadline.remaining()
    return policy if left is None or left >= policy.grace else replace(policy, grace=left)
