"""The examples of workflows: run as a new user does, and with workers that are killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longwatch.flow import Execution, Flow
from longwatch.testing import GraphRun, check_graph
from markdown_files import ROOT, Page
from polling import complete_lines, eventually
from run_process import TIMEOUT, clean_environment, start_process
from up_process import unused_port
from worker_process import WorkerProcess

FLOWS = ROOT / "examples" / "flows"
DAY = 86_400.0
START = "$ longwatch flow start "
START_LINES = [
    line.removeprefix(START)
    for block in Page.read(ROOT / "examples" / "README.md").blocks
    for line in block.text.splitlines()
    if line.startswith(START)
]
ENVIRONMENT = {"PYTHONPATH": str(FLOWS), "PYTHONDONTWRITEBYTECODE": "1"}


# --- as programs ---


@pytest.fixture(name="output")
def output_fixture(request: pytest.FixtureRequest, wheel_python: Path, tmp_path: Path) -> list[str]:
    """The lines that an example prints. It leaves nothing in the directory in which it runs."""
    done = subprocess.run(
        [wheel_python, "-W", "error", FLOWS / request.param],
        check=False,
        cwd=tmp_path,
        env=clean_environment(ENVIRONMENT),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert [] == list(tmp_path.iterdir())
    return done.stdout.splitlines()


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("output", [name], indirect=True)


def block(lines: list[str], title: str) -> list[str]:
    """The indented lines below a title."""
    below = lines[lines.index(title) + 1 :]
    count = next((n for n, line in enumerate(below) if not line.startswith("    ")), len(below))
    return [line.strip() for line in below[:count]]


@example("onboarding.py")
def test_onboarding_reminds_until_the_profile_is_complete(output: list[str]) -> None:
    first, weekly = "Your profile is empty", "Still no profile"
    *mails, tick = block(output, "day 10: ada is waiting")
    assert ["Welcome", first, weekly] == mails
    assert re.fullmatch(r"each_week is up to date, last due .*; fires at .* UTC, in 6 days", tick)
    ada = block(output, "day 42: ada is archived")
    assert ["Welcome", first, weekly, "Your profile is complete"] == ada
    assert ["Welcome", first, weekly, weekly, weekly] == block(output, "day 42: bob is archived")
    said = "5 calls sent 4 weekly reminders: 1 worker died after its mail"
    assert said == output[-1]


@example("approval.py")
def test_approval_waits_for_days_without_an_attempt_and_acts_once(output: list[str]) -> None:
    assert "act: waiting for input `approved`" in output
    assert "stopped: waiting for input `approved`" in output
    assert [
        "after three days: 0 attempts run",
        "letters: {'manager': 2, 'team': 6}",
        "approved: payments has the letter about order 17",
        "refused: no refund for order 18",
        "letters: {'manager': 2, 'payments': 1, 'team': 6}; the agent was asked 2 times",
    ] == output[-5:]


@example("nightly_report.py")
def test_a_nightly_report_comes_once_a_night_and_is_removed_in_the_end(output: list[str]) -> None:
    nights = [
        "Wed 21 Oct 2026, 02:30 CEST",
        "Thu 22 Oct 2026, 02:30 CEST",
        "Fri 23 Oct 2026, 02:30 CEST",
        "Sat 24 Oct 2026, 02:30 CEST",
        "Sun 25 Oct 2026, 02:30 CEST",
        "Mon 26 Oct 2026, 02:30 CET",
        "Tue 27 Oct 2026, 02:30 CET",
        "Wed 28 Oct 2026, 02:30 CET",
    ]
    totals = [100 * len("BaselBernGeneva") + 3 * day for day in range(21, 29)]
    saved = [f"saved: {night}  {total:>5} CHF" for night, total in zip(nights, totals, strict=True)]
    assert saved == output[:8]
    kept, fires, *removed = output[8:]
    assert f"kept: 7 reports, {nights[-1]} back to {nights[1]}" == kept
    assert "fires at 2026-10-29 01:30:00 UTC" in fires
    assert [
        "discontinued: 0 executions are listed",
        "after 30 days: removed from the store",
    ] == removed


@example("thousand_pages.py")
def test_a_thousand_pages_retries_one_page_and_fetches_new_ones_only(output: list[str]) -> None:
    ends = [*map(str, range(1000)), "new", "newer"]
    sizes = [len(f"the text of https://example.org/{end}") for end in ends]
    failure, *others = output
    assert "failed once: element 404 failed; the first: FileNotFoundError" in failure
    assert [
        "first run: 1002 fetches of 1000 pages",
        f"total: {sum(sizes[:1000])} characters",
        "retry: 1 fetches of 1 pages 404",
        f"total: {sum(sizes[1:])} characters",
        "two pages added, one removed: 2 fetches of 2 pages new, newer",
    ] == others


# --- with workers of the command line ---


def load(name: str) -> Any:
    """The module of an example, with its graph."""
    spec = importlib.util.spec_from_file_location(name, FLOWS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ExampleDirectory:
    """An empty directory in which a user calls `longwatch flow` with the examples."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd

    def call(self, line: str) -> str:
        """What `longwatch flow` prints, as typed into a shell."""
        done = subprocess.run(
            ["/bin/sh", "-c", f"{self.longwatch} flow {line}"],
            check=False,
            cwd=self.cwd,
            env=clean_environment(ENVIRONMENT),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    def start(self, line: str) -> str:
        """The id of the execution that was started."""
        return self.call(f"start {line}").split()[1]

    @contextmanager
    def execution(self, name: str, identity: str) -> Iterator[Execution]:
        url = f"sqlite:///{self.cwd / name}.db"
        with Flow(url, graphs=[load(name).graph]) as flow:
            yield flow.execution(identity)

    @contextmanager
    def worker(self, name: str) -> Iterator[WorkerProcess]:
        port = unused_port()
        health = ("--health-port", str(port), "--health-host", "127.0.0.1")
        words: list[str | Path] = [self.longwatch, "flow", "work", f"{name}:flow", *health]
        with start_process(words, self.cwd, env=ENVIRONMENT) as (process, out, err):
            yield WorkerProcess(
                process, out, err, port=port, longwatch=self.longwatch, cwd=self.cwd
            )


@pytest.fixture(name="directory")
def directory_fixture(longwatch_bin: Path, tmp_path: Path) -> ExampleDirectory:
    return ExampleDirectory(longwatch_bin, tmp_path)


FIRST_NODES = {"onboarding": "welcome", "approval": "proposal", "thousand_pages": "total"}
"""What a worker computes at once."""


@pytest.mark.parametrize("line", START_LINES)
def test_the_command_lines_of_the_page_start_each_example(
    directory: ExampleDirectory, line: str
) -> None:
    name = line.partition(":")[0]
    identity = directory.start(line)
    with directory.worker(name) as run, directory.execution(name, identity) as execution:
        if name in FIRST_NODES:
            assert execution.get(FIRST_NODES[name], timeout=TIMEOUT)
        else:
            assert "night: scheduled: it fires at" in directory.call(
                f"explain {name}:flow {identity}"
            )
        run.stop_cleanly()


def test_each_example_is_started_by_the_page() -> None:
    named = {line.partition(":")[0] for line in START_LINES}
    assert {file.stem for file in FLOWS.glob("*.py")} == named


@pytest.mark.parametrize("kills_parent", [False, True], ids=["process", "everything"])
def test_a_thousand_pages_lose_none_when_a_worker_is_killed(
    directory: ExampleDirectory, *, kills_parent: bool
) -> None:
    (directory.cwd / "repaired").touch()
    log = directory.cwd / "fetches.log"
    module = load("thousand_pages")
    with Flow(f"sqlite:///{directory.cwd}/thousand_pages.db", graphs=[module.graph]) as flow:
        execution = flow.start("thousand-pages", pages=module.PAGES)
        with directory.worker("thousand_pages") as run:
            [pid] = run.joined_pids("flow")
            assert eventually(lambda: len(complete_lines(log)) > 50)
            os.kill(run.pid if kills_parent else pid, signal.SIGKILL)
            fetched = len(complete_lines(log))
            again = directory.worker("thousand_pages") if kills_parent else nullcontext(run)
            with again as survivor:
                total = execution.get("total", timeout=TIMEOUT)
                survivor.stop_cleanly()
    assert 50 < fetched < 1000
    assert sum(len(f"the text of {page}") for page in module.PAGES) == total
    fetches = complete_lines(log)
    assert set(module.PAGES) == set(fetches)
    assert 1000 < len(fetches) < 1200  # once more: one page that timed out, and those that ran


def test_an_approval_waits_through_the_death_of_its_workers(directory: ExampleDirectory) -> None:
    identity = directory.start('approval:flow approval request="please refund order 17"')
    with directory.execution("approval", identity) as execution:
        with directory.worker("approval") as run:
            assert "17" == execution.get("proposal", timeout=TIMEOUT)["order"]
            os.kill(run.pid, signal.SIGKILL)
            run.wait()
        assert ["success"] == [
            each.state for each in execution.computations() if each.node == "proposal"
        ]
        said = directory.call(f"explain approval:flow {identity}")
        assert "act: waiting for input `approved`" in said
        assert "each_day: scheduled: it fires at" in said
        directory.call(f"set approval:flow {identity} approved=true")
        with directory.worker("approval") as run:
            said = execution.get("act", timeout=TIMEOUT)
            assert "payments has the letter about order 17" == said
            run.stop_cleanly()
    letters = [file.name for file in (directory.cwd / "letters").iterdir()]
    assert [f"{identity}-refund.json"] == letters


# --- with a worker that dies after each step ---


def test_onboarding_sends_each_mail_once_whenever_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = load("onboarding")

    def scenario(run: GraphRun) -> Execution:
        with closing(sqlite3.connect("mails.db")) as mails, mails:
            mails.execute("DROP TABLE IF EXISTS mails")
        execution = run.start(email="ada@example.org")
        run.advance(10 * DAY)
        execution.set(profile={"name": "Ada", "team": "engines"})
        run.finish()
        assert [
            "Welcome",
            "Your profile is empty",
            "Still no profile",
            "Your profile is complete",
        ] == module.sent_to("ada@example.org")
        return execution

    check_graph(module.graph, scenario, steps=["computed", "finished"])


def test_an_approval_acts_once_whenever_a_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = load("approval")

    def scenario(run: GraphRun) -> Execution:
        for letter in Path("letters").glob("*"):
            letter.unlink()
        execution = run.start(request="please refund order 17")
        run.advance(3.5 * DAY)
        execution.set(approved=True)
        run.finish()
        assert {"manager": 1, "payments": 1, "team": 3} == module.letters()
        return execution

    check_graph(module.graph, scenario, steps=["computed", "finished"])


def test_a_nightly_report_has_the_same_figures_whenever_a_worker_dies() -> None:
    module = load("nightly_report")
    begin = datetime(2026, 10, 24, 12, 0, tzinfo=UTC)

    def scenario(run: GraphRun) -> Execution:
        run.clock.jump_wall(begin.timestamp() - run.clock.wall())
        execution = run.start(shops=["Basel", "Bern"])
        run.advance(2 * DAY)
        reports = [entry["value"] for entry in execution.get("last_reports", wait=False)]
        assert [
            {"night": "Mon 26 Oct 2026, 02:30 CET", "total": 952, "shops": [526, 426]},
            {"night": "Sun 25 Oct 2026, 02:30 CEST", "total": 950, "shops": [525, 425]},
        ] == [{**report, "shops": list(report["shops"].values())} for report in reports]
        execution.set(discontinued=True)
        return execution

    check_graph(module.graph, scenario, steps=["computed", "finished"])
