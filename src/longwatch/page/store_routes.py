"""The pages and actions of stores, as part of `routes`."""

from __future__ import annotations

from longwatch.page.view import Action, Route
from longwatch.page.views import flows, mailboxes, runner

STORE_ROUTES: tuple[Route, ...] = (
    Route("/mailboxes", mailboxes.mailboxes, "Mailboxes"),
    Route("/mailboxes/{store}/{name}", mailboxes.mailbox),
    Route("/mailboxes/{store}/{name}/dead/{id}", mailboxes.dead_letter),
    Route("/flows", flows.flows, "Flows"),
    Route("/flows/{store}/{id}", flows.execution),
    Route("/runner", runner.runner, "Runner"),
    Route("/runner/{store}/runs/{id}", runner.run),
)

STORE_ACTIONS: tuple[Action, ...] = (
    Action(
        "/mailboxes/{store}/{name}/replay",
        "replay_dead_letters",
        mailboxes.confirm_replay,
        mailboxes.replay,
    ),
    Action(
        "/mailboxes/{store}/{name}/drop",
        "drop_dead_letters",
        mailboxes.confirm_drop,
        mailboxes.drop,
    ),
    Action("/flows/{store}/{id}/retry", "retry_nodes", flows.confirm_retry, flows.retry),
    Action("/runner/{store}/runs/{id}/retry", "retry_run", runner.confirm_retry, runner.retry),
    Action("/runner/{store}/runs/{id}/cancel", "cancel_run", runner.confirm_cancel, runner.cancel),
)
