from __future__ import annotations

from pathlib import Path

import pytest

from longwatch.config.discovery import find_config, load_config
from longwatch.errors import ConfigError, UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_is_the_one_that_is_named_else_that_of_the_variable_else_the_one_here() -> None:
    Path("longwatch.toml").touch()

    assert Path("a.toml") == find_config(Path("a.toml"), {"LONGWATCH_CONFIG": "b.toml"})
    assert Path("b.toml") == find_config(None, {"LONGWATCH_CONFIG": "b.toml"})
    assert Path("longwatch.toml") == find_config(None, {"LONGWATCH_CONFIG": ""})


def test_without_a_file_one_is_told_how_to_get_one() -> None:
    with pytest.raises(
        UsageError,
        match=(
            r"^no longwatch.toml here; write one with `longwatch init`, "
            r"or name it with --config$"
        ),
    ):
        find_config(None, {})


def test_a_named_file_that_is_not_there_is_told_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^a\.toml: cannot be read: no such file"):
        load_config(Path("a.toml"), {})


def test_a_current_directory_that_was_deleted_is_told_so(here: Path) -> None:
    here.rmdir()

    with pytest.raises(UsageError, match="no longer exists; change to one that does"):
        load_config(Path("a.toml"), {})


@pytest.mark.parametrize(
    ("text", "environ", "flags", "state"),
    [
        ("", {}, {}, "etc/.longwatch"),
        ("state_dir = '../var'", {}, {}, "etc/../var"),
        ("state_dir = '/var'", {}, {}, "/var"),
        ("", {"LONGWATCH_STATE_DIR": "env"}, {}, "env"),
        ("", {"LONGWATCH_STATE_DIR": "env"}, {"state_dir": "flag"}, "flag"),
        ("", {"LONGWATCH_STATE_DIR": ""}, {"state_dir": None}, "etc/.longwatch"),
    ],
)
def test_the_state_directory_of_a_file_is_beside_it_and_one_from_outside_is_here(
    here: Path, text: str, environ: dict[str, str], flags: dict[str, object], state: str
) -> None:
    Path("etc").mkdir()
    Path("etc/longwatch.toml").write_text(text)
    loaded = load_config(Path("etc/longwatch.toml"), environ, flags)

    assert (here / "etc", here / state, "etc/longwatch.toml") == (
        loaded.base_dir,
        loaded.state_dir,
        loaded.display_path,
    )


def test_a_state_directory_that_is_off_is_none() -> None:
    Path("longwatch.toml").write_text("state_dir = 'off'")

    assert load_config(None, {}).state_dir is None
