"""Opens the store of a runner for one command, and closes it after it. A command that only reads
creates neither files nor tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longwatch.app.runner import runner_store_url
from longwatch.config.discovery import FILE_NAME, load_config
from longwatch.config.runner import DEFAULT_STORE, variable_name
from longwatch.core.masking import mask_text
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.runner.event_store import EventRecord, EventStore
from longwatch.runner.run_store import RunRecord, RunStore
from longwatch.store.migrations import schema_status
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sqlite.file import require_usable_path
from longwatch.store.url import SQL_SCHEMES, open_database, suggest_url

STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStore:
    """The events, sources and runs of one store. `shown`: its URL, masked."""

    events: EventStore
    runs: RunStore
    shown: str

    def run(self, run_id: str) -> RunRecord:
        """The run of this id. Raises UsageError with the nearest id if there is none."""
        found = self.runs.run(run_id)
        if found is None:
            near = [each.id for each in self.runs.runs(limit=1000)]
            hint = did_you_mean(run_id, near, default="`longwatch runner runs ls` lists them")
            raise UsageError(f"there is no run {run_id!r} in {self.shown}; {hint}")
        return found

    def require_source(self, name: str | None) -> None:
        """Raise UsageError with the nearest name if no runner ever had this source."""
        if name is None:
            return
        names = [source.name for source in self.events.sources()]
        if name not in names:
            hint = did_you_mean(name, names, default="`longwatch runner sources` lists them")
            raise UsageError(f"there is no source {name!r} in {self.shown}; {hint}")

    def retry(self, run_id: str) -> EventRecord:
        """Queue the event of a run again."""
        return self.events.retry(self.run(run_id).event)


@contextmanager
def opened_runner_store(
    url: str | None, config: Path | None, environ: Mapping[str, str]
) -> Iterator[RunnerStore]:
    """Open the store of a URL, else that of the file. Raises UsageError if no runner
    has used it.
    """
    chosen = url or configured_store_url(config, environ)
    database = open_database(chosen)
    if database is None:
        raise UsageError(
            f"{mask_text(chosen)!r} names no SQL store; {suggest_url(chosen, SQL_SCHEMES)}"
        )
    shown = mask_text(database.url)
    try:
        if isinstance(database, SqliteDatabase):
            require_usable_path(database.path)
        status = schema_status(database)
        if status is None or not status.version:
            raise UsageError(f"no store at {shown}; `longwatch runner` makes it, or give --store")
        yield RunnerStore(events=EventStore(database), runs=RunStore(database), shown=shown)
    finally:
        database.close()


def configured_store_url(config: Path | None, environ: Mapping[str, str]) -> str:
    """The URL of the store in the settings of the runner; the default without a file."""
    if environ.get(variable_name("store_url")):
        return environ[variable_name("store_url")]
    is_named = config is not None or environ.get("LONGWATCH_CONFIG")
    if not is_named and not os.path.lexists(FILE_NAME):
        return DEFAULT_STORE
    loaded = load_config(config, environ)
    if loaded.settings.runner is None:
        return DEFAULT_STORE
    return runner_store_url(loaded, environ, {})


def read_log(run: RunRecord, stream: str) -> bytes | None:
    """The kept output of an agent on a stream; None if its workspace is not on this machine."""
    try:
        return (Path(run.workspace) / f"{stream}.log").read_bytes()
    except OSError:
        return None
