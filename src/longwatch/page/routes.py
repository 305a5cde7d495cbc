"""The pages and actions of the status page: a path, what answers it, and its navigation entry.

The navigation has the entries in this order. Routes are tried from the top.
"""

from __future__ import annotations

from longwatch.page.view import Action, Route
from longwatch.page.views.overview import overview
from longwatch.page.views.programs import containers, programs

ROUTES: tuple[Route, ...] = (
    Route("/", overview, "Overview"),
    Route("/programs", programs, "Programs"),
    Route("/containers", containers, "Containers"),
)

ACTIONS: tuple[Action, ...] = ()
