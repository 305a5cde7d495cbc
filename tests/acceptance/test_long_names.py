"""Names that are too long for a file are wrong use, told in one line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from longwatch.cli.main import report_error
from run_process import run_longwatch
from up_process import write_config

NAME = "x" * 300
PATH = "x/" * 2500


@pytest.mark.parametrize("name", [NAME, PATH], ids=["name", "path"])
@pytest.mark.parametrize(
    "words",
    [
        ("run", "--", "{}"),
        ("run", "--cwd", "{}", "--", "true"),
        ("run", "--state-dir", "{}", "--", "true"),
        ("up", "--config", "{}"),
        ("up", "--state-dir", "{}"),
        ("check", "--config", "{}"),
        ("worker", "app:group", "--state-dir", "{}"),
        ("status", "--state-dir", "{}"),
        ("logs", "--state-dir", "{}"),
        ("logs", "{}"),
        ("events", "--state-dir", "{}"),
        ("eval", "compare", "{}", "{}"),
        ("eval", "run", "{}", "app:loop"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_refused_in_one_line(
    longwatch_bin: Path, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    write_config(tmp_path, {"web": {"command": ["true"]}})
    given = (word.format(name) for word in words)
    refused = run_longwatch(longwatch_bin, tmp_path, *given)
    [line] = refused.stderr.splitlines()
    assert (2, "") == (refused.returncode, refused.stdout), line
    assert line.startswith("longwatch: ")
    assert "OSError" not in line


@pytest.mark.parametrize("command", ["check", "up"])
def test_a_command_with_a_name_that_is_too_long_is_a_fault_of_the_file(
    longwatch_bin: Path, tmp_path: Path, command: str
) -> None:
    write_config(tmp_path, {"web": {"command": [NAME]}})
    refused = run_longwatch(longwatch_bin, tmp_path, command)
    [line] = refused.stderr.splitlines()
    assert 2 == refused.returncode
    assert line.startswith(f"longwatch: longwatch.toml: program.web.command: command {NAME!r} ")


def test_wherever_the_operating_system_refuses_a_name_it_is_wrong_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = OSError(errno.ENAMETOOLONG, "File name too long", NAME)
    assert 2 == report_error(error, ["check"])
    assert (
        f"longwatch: the name '{'x' * 59}…' is too long for a file; each part may have 255 bytes, "
        f"a whole path 4095\n"
    ) == capsys.readouterr().err
