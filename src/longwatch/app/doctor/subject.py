"""What `longwatch doctor` examines: settings, state directory, stores, and what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longwatch.app.control import request, workers
from longwatch.app.runner_plan import store_url
from longwatch.config.discovery import FILE_NAME, LoadedConfig, examine_config
from longwatch.config.settings import DEFAULT_STATE_DIR
from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.masking import mask_text
from longwatch.errors import Fault, LongwatchError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.mailbox.url import SCHEMES
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.url import open_database, split_url, suggest_url
from longwatch.supervisor.supervisor_lock import NotRunningError

ANSWER_TIMEOUT = 5.0
"""Seconds to wait for running supervisors."""
STORE_SCHEMES = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "redis": "redis",
    "rediss": "redis",
    "redis+sentinel": "redis",
    "rediss+sentinel": "redis",
}
"""The kind of store of each scheme."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs on the state directory. `problem` says why running supervisors did not answer."""

    programs: tuple[dict[str, Any], ...] = ()
    supervisors: tuple[dict[str, Any], ...] = ()
    workers: tuple[dict[str, Any], ...] = ()
    stores: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The machine as the checks see it. `loaded` is None without a file of settings, `state` if
    there is to be no state directory.
    """

    state: Path | None = None
    loaded: LoadedConfig | None = None
    faults: tuple[Fault, ...] = ()
    stores: tuple[str, ...] = ()
    running: Running = Running()
    environ: Mapping[str, str] = field(default_factory=dict)

    def stores_of(self, kind: str) -> list[str]:
        """The URLs of the stores of one kind."""
        return [url for url in self.stores if store_kind(url) == kind]

    @property
    def number_of_processes(self) -> int:
        """How many programs and worker processes the file has; at least as many as run."""
        if self.loaded is None:
            return len(self.running.programs)
        settings = self.loaded.settings
        workers_ = sum(worker.processes for worker in settings.worker.values())
        declared = len(settings.program) + len(settings.container) + workers_
        return max(declared + (settings.runner is not None), len(self.running.programs))

    @property
    def store_processes(self) -> int:
        """How many processes of this machine use stores: the workers and the runner."""
        if self.loaded is None:
            return len(self.running.workers)
        settings = self.loaded.settings
        declared = sum(worker.processes for worker in settings.worker.values())
        return max(declared + (settings.runner is not None), len(self.running.workers))


def store_kind(url: str) -> str:
    """`sqlite`, `postgresql` or `redis`; empty for another URL."""
    return STORE_SCHEMES.get(split_url(url)[0], "")


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL. Raises UsageError for a URL that names none."""
    database = open_database(url)
    assert isinstance(database, SqliteDatabase)
    return database.path


def find_subject(
    config: Path | None,
    state_dir: str | None,
    stores: Sequence[str],
    environ: Mapping[str, str],
) -> Subject:
    """Find what there is to examine. Raises UsageError for a store URL of no known kind."""
    for url in stores:
        if not store_kind(url):
            raise UsageError(
                f"no store is known for {mask_text(url)!r}; "
                f"{suggest_url(url, tuple(each for each in SCHEMES if each != 'memory'))}"
            )
    loaded, faults = _settings(config, environ, state_dir)
    state = _state_directory(loaded, state_dir, environ)
    running = Running() if state is None else _running(state)
    urls = dict.fromkeys([*stores, *_declared_stores(loaded), *running.stores])
    return Subject(
        state=state,
        loaded=loaded,
        faults=tuple(faults),
        stores=tuple(url for url in urls if store_kind(url)),
        running=running,
        environ=environ,
    )


def _settings(
    config: Path | None, environ: Mapping[str, str], state_dir: str | None
) -> tuple[LoadedConfig | None, list[Fault]]:
    """The settings and their faults; nothing if no file is named and there is none here."""
    is_named = config is not None or environ.get("LONGWATCH_CONFIG")
    if not is_named and not Path(FILE_NAME).exists():
        return None, []
    return examine_config(config, environ, {"state_dir": state_dir})


def _state_directory(
    loaded: LoadedConfig | None, state_dir: str | None, environ: Mapping[str, str]
) -> Path | None:
    if loaded is not None:
        return loaded.state_dir
    chosen = state_dir or environ.get("LONGWATCH_STATE_DIR") or DEFAULT_STATE_DIR
    return None if chosen == "off" else Path(chosen)


def _declared_stores(loaded: LoadedConfig | None) -> list[str]:
    """The stores that the file names: of the runner, and of the page. A relative SQLite file is
    beside the file.
    """
    if loaded is None:
        return []
    settings = loaded.settings
    urls = [] if settings.runner is None else [settings.runner.store_url]
    urls += getattr(getattr(settings, "page", None), "stores", ())
    return [store_url(url, loaded.base_dir) for url in urls]


def _running(state: Path) -> Running:
    """Ask the supervisors of the state directory, for a few seconds at most."""
    found: list[Running] = []
    thread = BackgroundThread(lambda: found.append(_ask(state)), name="longwatch-doctor ask")
    thread.start()
    clock = SystemClock()
    if not thread.wait(clock, Deadline.after(ANSWER_TIMEOUT, clock)):
        late = f"running supervisors gave no answer within {ANSWER_TIMEOUT:g} s"
        return Running(problem=f"{late}; see whether they are stopped or the machine is overloaded")
    return found[0] if found else Running(problem=f"supervisors cannot be asked: {thread.error}")


def _ask(state: Path) -> Running:
    try:
        answer = request(state, "status")
        report = workers(state)
    except NotRunningError:
        return Running()
    except LongwatchError as error:
        return Running(problem=str(error))
    return Running(
        programs=tuple(answer["programs"]),
        supervisors=tuple(answer.get("supervisors", ())),
        workers=tuple(report["workers"]),
        stores=tuple(each["url"] for each in report["stores"]),
    )
