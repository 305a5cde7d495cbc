"""The settings of `longwatch page`, with or without a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longwatch.app.control import state_directory
from longwatch.app.runner_plan import store_url
from longwatch.config.discovery import FILE_NAME, LoadedConfig, examine_config
from longwatch.config.settings import LogSettings, load_settings
from longwatch.config.tables import PageSettings
from longwatch.errors import ConfigError, UsageError

StoreName = Mapping[str, str]
"""A store as `url` and, if it is known, `kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPageSettings:
    """What a page shows: a state directory, stores, or both."""

    settings: PageSettings
    state: Path | None
    stores: Sequence[StoreName]
    log: LogSettings


def page_settings(
    config: Path | None,
    state_dir: str | None,
    environ: Mapping[str, str],
    *,
    stores: Sequence[str] = (),
) -> FoundPageSettings:
    """Find the settings. Faults of other tables do not matter: the page shows what runs.

    Raises UsageError if there is neither a state directory nor a store, ConfigError for faults of
    `[page]`.
    """
    loaded = _load(config, environ)
    if loaded is None:
        settings = load_settings(path=None, environ=environ, flags={})
        base = Path.cwd()
    else:
        settings, base = loaded.settings, loaded.base_dir
    named = [*stores, *(store_url(url, base) for url in settings.page.stores)]
    found: list[StoreName] = [{"url": url} for url in named]
    if loaded is not None and settings.runner is not None:
        found.append({"url": store_url(settings.runner.store_url, base), "kind": "runner"})
    return FoundPageSettings(
        settings=settings.page,
        state=_state(state_dir, config, environ, has_stores=bool(named)),
        stores=found,
        log=settings.supervisor.log,
    )


def _load(config: Path | None, environ: Mapping[str, str]) -> LoadedConfig | None:
    """The settings file; None if there is none, and none is named."""
    is_named = config is not None or environ.get("LONGWATCH_CONFIG")
    if not is_named and not os.path.lexists(FILE_NAME):
        return None
    loaded, faults = examine_config(config, environ)
    own = [fault for fault in faults if f"{fault.where}.".rpartition(": ")[2].startswith("page.")]
    if own or loaded is None:
        raise ConfigError(*(own or faults))
    return loaded


def _state(
    state_dir: str | None, config: Path | None, environ: Mapping[str, str], *, has_stores: bool
) -> Path | None:
    chosen = state_dir or environ.get("LONGWATCH_STATE_DIR")
    if chosen == "off" and has_stores:
        return None
    state = state_directory(state_dir, config, environ)
    if state.is_dir():
        return state.absolute()
    if has_stores and not chosen:
        return None
    raise UsageError(
        f"there is no state directory {str(state)!r} to show; start something with `longwatch up`, "
        "or give --state-dir or --store"
    )
