"""`longwatch up` stays for long: what only the reading of words needs is not in its memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from run_process import TIMEOUT

WITHOUT_CLICK = (
    "import sys; sys.modules['click'] = None; from longwatch.cli.entry import main; main()"
)
TOML = '[program.one]\ncommand = ["sh", "-c", "echo born; exec sleep 1000"]\n'


def test_up_runs_where_there_is_no_click(longwatch_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "longwatch.toml").write_text(TOML)
    command: list[str | Path] = [
        longwatch_bin.parent / "python",
        "-c",
        WITHOUT_CLICK,
        "up",
        "--log-format=json",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert b"born" in process.stdout.readline()
        process.terminate()
        assert 0 == process.wait(TIMEOUT)


@pytest.mark.parametrize("words", [["--config", "none.toml"], ["--config=none.toml", "--help"]])
def test_mistakes_and_questions_are_answered_as_they_are_by_click(
    longwatch_bin: Path, tmp_path: Path, words: list[str]
) -> None:
    def answered(*before: str) -> tuple[int, str, list[str]]:
        command: list[str | Path] = [longwatch_bin, *before, "up", *words]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    assert answered("--debug") == answered()
