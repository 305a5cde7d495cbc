"""The pages and actions of the status page: a path, what answers it, and its navigation entry.

The navigation has the entries in this order. Routes are tried from the top.
"""

from __future__ import annotations

from longwatch.page.store_routes import STORE_ACTIONS, STORE_ROUTES
from longwatch.page.view import Action, Route
from longwatch.page.views.events import events, log, logs
from longwatch.page.views.overview import overview
from longwatch.page.views.program import ProgramAction, program
from longwatch.page.views.programs import containers, programs
from longwatch.page.views.restarts import restarts
from longwatch.page.views.workers import stacks, workers

ROUTES: tuple[Route, ...] = (
    Route("/", overview, "Overview"),
    Route("/programs", programs, "Programs"),
    Route("/programs/{name}", program),
    Route("/containers", containers, "Containers"),
    Route("/workers", workers, "Workers"),
    Route("/stacks/{file}", stacks),
    *STORE_ROUTES,
    Route("/restarts", restarts, "Restarts"),
    Route("/events", events, "Events"),
    Route("/logs", logs, "Logs"),
    Route("/logs/{name}", log),
)

ACTIONS: tuple[Action, ...] = (
    *(
        Action(f"/programs/{{name}}/{command}", command, action.confirm, action.run)
        for command in ("start", "stop", "restart", "reset")
        for action in (ProgramAction(command),)
    ),
    *STORE_ACTIONS,
)
