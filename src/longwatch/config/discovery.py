"""Finds the file of the settings, and resolves its relative paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longwatch.config.settings import Settings, examine_settings
from longwatch.core.sanitize import printable
from longwatch.errors import ConfigError, Fault, UsageError

FILE_NAME = "longwatch.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """The settings of a file, and the directories that its paths are relative to.

    `base_dir` is the directory of the file; relative paths in the file begin there. `state_dir` is
    the state directory, None if it is off. A state directory from a flag or the environment is
    relative to the present directory.
    """

    settings: Settings
    path: Path
    base_dir: Path
    state_dir: Path | None

    @property
    def absolute_path(self) -> Path:
        return self.base_dir / self.path.name

    @property
    def display_path(self) -> str:
        """The file as messages name it."""
        return printable(str(self.path))


def find_config(path: Path | None, environ: Mapping[str, str]) -> Path:
    """The file that `--config` names, else LONGWATCH_CONFIG, else ./longwatch.toml. Raises
    UsageError if there is none.
    """
    named = path or Path(environ.get("LONGWATCH_CONFIG") or FILE_NAME)
    if path is None and not environ.get("LONGWATCH_CONFIG") and not os.path.lexists(named):
        raise UsageError(
            f"no {FILE_NAME} here; write one with `longwatch init`, or name it with --config"
        )
    return named


def load_config(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> LoadedConfig:
    """Find and read the file. Raises UsageError if there is none, ConfigError with every fault."""
    loaded, faults = examine_config(path, environ, flags)
    if faults:
        raise ConfigError(*faults)
    assert loaded is not None
    return loaded


def examine_config(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object] | None = None
) -> tuple[LoadedConfig | None, list[Fault]]:
    """Find the file and read it. Raises UsageError if there is none. With faults the settings are
    partial, for further checks; None if the file itself is unusable.
    """
    found, here = find_config(path, environ), _current_directory()
    settings, faults = examine_settings(path=found, environ=environ, flags=flags or {})
    if settings is None:
        return None, faults
    base = (here / found).parent
    from_override = (flags or {}).get("state_dir") is not None or environ.get("LONGWATCH_STATE_DIR")
    state = settings.state_path
    loaded = LoadedConfig(
        settings=settings,
        path=found,
        base_dir=base,
        state_dir=state and (here if from_override else base) / state,
    )
    return loaded, faults


def _current_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the current directory no longer exists; change to one that does"
        ) from None
