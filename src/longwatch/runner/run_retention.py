"""Removes old runs: first the workspace, then the record that names it.

A workspace is removed only if it is the directory of that run below the present root. So nothing is
removed that no run has named, and a run whose workspace was elsewhere loses its record alone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from longwatch.runner.run_store import OldRun, RunStore
from longwatch.runner.workspace import Workspace

BATCH = 50
MAX_BATCHES = 20
"""The most batches of one sweep. The next sweep continues."""


def remove_old_runs(store: RunStore, root: Path, *, retention: float) -> int:
    """Remove runs that began longer ago than `retention` seconds, in small batches. Return how
    many.

    The record of a workspace that cannot be removed stays, and the next sweep tries again. Blocks
    on the store and the disk.
    """
    removed, after = 0, 0
    for _ in range(MAX_BATCHES):
        batch = store.old_runs(retention=retention, after=after, limit=BATCH)
        gone = [run.id for run in batch if _remove_workspace(run, root)]
        if gone:
            store.delete(gone)
        removed += len(gone)
        if len(batch) < BATCH:
            break
        after = batch[-1].seq
    return removed


def _remove_workspace(run: OldRun, root: Path) -> bool:
    """Remove the workspace of a run. Return whether its record may be deleted."""
    workspace = Workspace(root, run.id)
    if str(workspace.path) == run.workspace:
        with suppress(OSError):
            workspace.remove()
        return not workspace.path.exists()
    return True
