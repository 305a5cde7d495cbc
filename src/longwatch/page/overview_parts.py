"""The parts of the overview. Each finds what is unhealthy in its area, and sums the area up.

A part may block for a while; expensive facts belong into `PageData.cached`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from longwatch.page.data import PageData
from longwatch.page.program_facts import (
    BAD,
    JsonObject,
    Problem,
    counts_by_health,
    problem_of,
)
from longwatch.page.rendering import byte_size
from longwatch.page.store_summary import store_summary
from longwatch.page.view import path_to
from longwatch.page.worker_facts import worker_problem

MIN_FREE_BYTES = 100 << 20
_MIN_FREE_SHARE = 0.05
"""A disk is short of space with less than both of these, so that a small one is not always so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A number of the summary, with the page behind it. `kind` colours it."""

    name: str
    number: int
    href: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class OverviewPart:
    """What one area contributes to the overview."""

    problems: Sequence[Problem] = ()
    tiles: Sequence[Tile] = ()


def program_part(page: PageData) -> OverviewPart:
    programs = page.control.status().programs
    problems = [
        replace(problem, href=path_to("programs", problem.subject))
        for program in programs
        if (problem := problem_of(program)) is not None and not _reports_as_worker(program)
    ]
    containers = [each for each in programs if each["kind"] == "container"]
    counts = counts_by_health(programs)
    unhealthy = counts[BAD]
    tiles = [
        Tile(name="programs", number=len(programs) - len(containers), href="/programs"),
        Tile(name="up", number=counts["ok"], href="/programs?state=ok", kind="ok"),
        Tile(
            name="unhealthy programs",
            number=unhealthy,
            href="/programs?state=bad",
            kind="bad" if unhealthy else "",
        ),
    ]
    if containers:
        tiles.insert(1, Tile(name="containers", number=len(containers), href="/containers"))
    return OverviewPart(problems, tiles)


def _reports_as_worker(program: JsonObject) -> bool:
    """Whether `worker_part` says why it is not ready, in more detail."""
    return program["kind"] == "worker" and bool(program.get("unready_reason"))


def worker_part(page: PageData) -> OverviewPart:
    workers = page.control.workers()
    problems = [found for each in workers if (found := worker_problem(each)) is not None]
    tiles = [Tile(name="worker processes", number=len(workers), href="/workers")]
    return OverviewPart(problems, tiles if workers else ())


def content_part(page: PageData) -> OverviewPart:
    """The mailboxes and the event sources of the stores."""
    found = store_summary(page)
    tiles = []
    if found.mailboxes:
        tiles += [
            Tile(name="messages ready", number=found.ready, href="/mailboxes"),
            Tile(
                name="dead letters",
                number=found.dead,
                href="/mailboxes",
                kind="bad" if found.dead else "",
            ),
        ]
    if found.sources:
        tiles += [
            Tile(name="event sources", number=found.sources, href="/runner"),
            Tile(name="agents running", number=found.running, href="/runner"),
        ]
    return OverviewPart(found.problems, tiles)


def store_part(page: PageData) -> OverviewPart:
    """The stores that do not answer."""
    problems = [
        Problem(
            kind=BAD,
            subject=each.entry.shown,
            what="store does not answer",
            why=each.reason,
            since=each.since,
        )
        for each in page.stores.problems()
    ]
    return OverviewPart(problems)


def disk_part(page: PageData) -> OverviewPart:
    """The file systems of the state directory and of the SQLite stores that are short of space."""
    found: dict[int, Problem] = {}
    for directory in _written_directories(page):
        with suppress(OSError, ValueError):  # there is no such directory, which others say
            disk, device = os.statvfs(directory), directory.stat().st_dev
            free = disk.f_bavail * disk.f_frsize
            if free < min(MIN_FREE_BYTES, disk.f_blocks * disk.f_frsize * _MIN_FREE_SHARE):
                found.setdefault(device, _disk_problem(directory, free))
    return OverviewPart(tuple(found.values()))


def _written_directories(page: PageData) -> Iterator[Path]:
    if page.state is not None:
        yield page.state
    for entry in page.stores.entries():
        kind, _, path = entry.url.partition(":///")
        if kind == "sqlite":
            yield Path(unquote(path)).parent


def _disk_problem(directory: Path, free: int) -> Problem:
    return Problem(
        kind=BAD,
        subject=str(directory),
        what="disk almost full" if free else "disk full",
        why=f"{byte_size(free)} free; without space logs, events and messages are not written",
    )


PARTS: tuple[Callable[[PageData], OverviewPart], ...] = (
    program_part,
    worker_part,
    content_part,
    store_part,
    disk_part,
)
"""In the order of the summary."""
