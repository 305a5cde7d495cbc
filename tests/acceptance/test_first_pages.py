"""The examples of the first two pages, README and quickstart, followed as a new user does."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from markdown_files import ROOT, Page
from run_process import RunProcess, clean_environment, start_process, start_run
from up_process import unused_port

TIME_LIMIT = 120


@pytest.fixture
def wheel_longwatch(wheel_python: Path) -> Path:
    return wheel_python.with_name("longwatch")


def write_example(page: str, directory: Path, port: int = 8000) -> None:
    """Save the one Python example of a page as `app.py`, with a free port in it."""
    [block] = [block for block in Page.read(ROOT / page).blocks if block.info[:1] == ("python",)]
    (directory / "app.py").write_text(block.text.replace("8000", f"{port}"), encoding="utf-8")


def test_the_example_of_the_readme_sends_a_message_and_a_worker_handles_it(
    wheel_python: Path, wheel_longwatch: Path, tmp_path: Path
) -> None:
    write_example("README.md", tmp_path)
    subprocess.run(
        [wheel_python, "app.py"],
        check=True,
        cwd=tmp_path,
        env=clean_environment(),
        timeout=TIME_LIMIT,
    )
    words: list[str | Path] = [wheel_longwatch, "worker", "app:group", "--processes", "2"]
    with start_process(words, tmp_path) as (process, out, err):
        worker = RunProcess(process, out, err, tmp_path / ".longwatch" / "logs")
        while "working on page 1" not in worker.next_line():
            pass
        worker.signal(signal.SIGINT)
        assert 0 == worker.wait()


def test_the_program_of_the_quickstart_hangs_on_demand_and_is_restarted(
    wheel_python: Path, wheel_longwatch: Path, tmp_path: Path
) -> None:
    port = unused_port()
    write_example("docs/quickstart.md", tmp_path, port)
    options = [f"--health-port={port}", "--health-interval=1", "--health-timeout=1"]
    command: list[str | Path] = [wheel_python, "app.py"]
    with start_run(
        wheel_longwatch, tmp_path, command, options=[*options, "--health-start-grace=1"]
    ) as run:
        run.wait_for_event("program_ready")
        hang = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/hang', timeout=60)"
        with start_process([wheel_python, "-c", hang], tmp_path):
            run.wait_for_event("health_check_restart")
            run.wait_for_event("program_started", times=2)
