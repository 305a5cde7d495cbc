"""The answer to the control command `workers`: the state of worker processes, and all stores.

`app.control.workers` merges the answers of several supervisors. URLs of stores are complete: the
control socket is for this user alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longwatch.workers.monitor import WorkerMonitor

WORKERS_COMMAND = "workers"
RUNNER_STORE = "runner"
"""The kind of the store of a runner."""


def worker_report(
    monitor: WorkerMonitor | None = None, stores: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """The workers of a monitor, and the stores that they use. `stores` are the URLs and kinds of
    further stores. Never blocks.
    """
    found = dict.fromkeys([*([] if monitor is None else monitor.stores()), *stores])
    return {
        "workers": [] if monitor is None else monitor.worker_facts(),
        "stores": [{"url": url, "kind": kind} for url, kind in found],
    }
