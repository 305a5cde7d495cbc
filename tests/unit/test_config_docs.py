"""The file of `longwatch init` shows every key with its default. (tests/unit/test_reference.py has
the page docs/reference/settings.md.)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import inspect as kinds

from longwatch.app.scaffold import example_config
from longwatch.config.settings import Settings, load_settings
from longwatch.config.value_checks import TypeInfo, union_members, without_metadata

_SETTING = re.compile(r"^# ?(?=[\w.]+ = |\[)", re.MULTILINE)
_WITHOUT_DEFAULT = re.compile(r"# (example|.*default:)")
_OTHER_KIND = re.compile(r"^(health\.command|liveness\.command|liveness\.port) = .*$", re.MULTILINE)
"""What is there for other kinds of checks than the one that the example has."""
_EXAMPLE_NAMES = {
    "program": "program.web",
    "worker": "worker.jobs",
    "container": "container.agent",
    "runner.source": "runner.source.prod",
}
_FREE_TABLES = {"env", "headers", "labels", "arguments"}


def values(table: dict[str, Any], place: str = "") -> Iterator[tuple[str, object]]:
    """Every value by its dotted path."""
    for key, value in table.items():
        path = f"{place}.{key}".removeprefix(".")
        if isinstance(value, dict) and key not in _FREE_TABLES:
            yield from values(value, path)
        else:
            yield path, value


def defaults(kind: TypeInfo, place: str = "") -> Iterator[tuple[str, object]]:
    """Every setting by its dotted path, with its default; the one program is called `web`, the
    one worker `jobs`, the one container `agent`, the one event source `prod`.
    """
    struct = next(
        inner
        for inner in map(without_metadata, union_members(kind))
        if isinstance(inner, kinds.StructType)
    )
    for field in struct.fields:
        path = f"{place}.{field.name}".removeprefix(".")
        below = [
            inner
            for inner in map(without_metadata, union_members(field.type))
            if isinstance(inner, kinds.StructType | kinds.DictType)
        ]
        if below and isinstance(below[0], kinds.StructType):
            yield from defaults(field.type, path)
        elif path in _EXAMPLE_NAMES:
            yield from defaults(cast("kinds.DictType", below[0]).value_type, _EXAMPLE_NAMES[path])
        else:
            yield (
                path,
                field.default_factory() if callable(field.default_factory) else field.default,
            )


DEFAULTS = dict(defaults(kinds.type_info(Settings)))
IN_EFFECT = {"program.web.health.enabled": True, "program.web.stop_signal": "TERM"}
"""What is meant where the struct leaves it open, because `[run]` means something else."""
SHARED = {path.removeprefix("program.web") for path in DEFAULTS if path.startswith("program.web.")}
DOCUMENTED_BY_PROGRAMS = {
    place + path for path in SHARED for place in ("run", "worker.jobs", "container.agent")
}
"""What `[run]`, workers and containers need not tell again, because programs do."""
DOCUMENTED_BY_LIVENESS = {path for path in DEFAULTS if re.search(r"\.(readiness|startup)\.", path)}
"""What other probes need not tell again."""
PROBES_OF_PROGRAMS = {path for path in DEFAULTS if path.startswith("program.web.liveness.")}
"""What the file of `init` shows for its container: its program has `health`."""


def test_the_file_of_init_shows_every_key_that_programs_and_their_supervisor_have() -> None:
    told = dict(values(tomllib.loads(_SETTING.sub("", example_config()))))

    wanted = {path for path in DEFAULTS if not path.startswith("run.")}
    assert set() == told.keys() - wanted
    assert (
        set()
        == wanted
        - told.keys()
        - DOCUMENTED_BY_PROGRAMS
        - DOCUMENTED_BY_LIVENESS
        - PROBES_OF_PROGRAMS
    )
    assert {path for path in wanted if path.startswith("container.agent.liveness.")} <= told.keys()


def test_what_the_file_of_init_has_as_comments_is_the_default_unless_it_says_otherwise() -> None:
    lines = [line for line in example_config().splitlines() if re.match(r"#?\[|#\w", line)]
    text = "\n".join(line.removeprefix("#") for line in lines if not _WITHOUT_DEFAULT.search(line))
    told = dict(values(tomllib.loads(text)))

    assert len(told) > 30
    assert {path: (DEFAULTS | IN_EFFECT)[path] for path in told} == told


@pytest.mark.parametrize("uncomment", [False, True])
def test_the_file_of_init_is_valid_with_and_without_its_comments(
    tmp_path: Path,
    uncomment: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "longwatch.toml"
    text = (
        _OTHER_KIND.sub("", _SETTING.sub("", example_config())) if uncomment else example_config()
    )
    path.write_text(text, encoding="utf-8")

    assert ["web"] == list(load_settings(path=path, environ={}, flags={}).program)
