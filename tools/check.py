"""Everything that must hold, step by step: `check.py` runs all of it, `check.py lint wheel` only
these groups.

A failing step does not stop the next one, so that one run tells everything; it fails the whole. The
summary at the end names each step, counts the tests, and says what was skipped and why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import other_pythons
import system_tools
from test_counts import MOST_FLAKY, TestCounts

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
SOURCES = [
    name for name in ("src", "tests", "tools", "bench", "examples") if (ROOT / name).exists()
]
NO_TESTS_COLLECTED = 5
WORKERS = 4
"""Processes that run all tests: two a core, because half of the tests mostly wait."""
UNIT_WORKERS = 2
"""Processes that run the unit tests, which compute and do not wait."""
MOST_AGAIN = 20
"""Failed tests that run again alone: more failures than this are no matter of luck."""
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


@dataclass
class CheckRun:
    """What has happened so far: the steps with their outcome, the tests counted, the things
    skipped.
    """

    steps: list[tuple[str, bool, float]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    counts: TestCounts = field(default_factory=TestCounts)
    environments: dict[str, Future[Path]] = field(default_factory=dict)
    """The Python of each other version's environment, made while other steps run."""

    def step(self, name: str, action: Callable[[], bool]) -> None:
        print(f"\n── {name}", flush=True)
        began = time.monotonic()
        try:
            passed = action()
        except (OSError, subprocess.SubprocessError) as error:
            print(error)
            passed = False
        self.steps.append((name, passed, time.monotonic() - began))

    def command(self, name: str, *command: str | Path) -> None:
        self.step(name, lambda: _call(command) == 0)

    def pytest(
        self, name: str, python: str | Path, *arguments: str | Path, parallel: int = 0
    ) -> None:
        """Run pytest. A run that collects nothing passes: the total must not be empty, each part
        may be.

        A test that fails in a parallel run runs once more, alone: if it passes then, it is flaky,
        and the step passes.
        """
        report = _report(name)
        together = (
            ("-n", str(parallel), "--dist=worksteal", "--cache-clear")
            if parallel
            else ("-p", "no:cacheprovider")
        )
        self.step(name, lambda: _pytest(python, report, *together, *arguments))
        if report.exists():
            self.counts.add(name, report)
        if parallel and not self.steps[-1][1] and (failed := _failed_tests()):
            self._again(name, python, failed)

    def _again(self, name: str, python: str | Path, failed: list[str]) -> None:
        again = _report(f"{name} again")
        self.step(
            f"{name}: {len(failed)} failed, again alone",
            lambda: _pytest(python, again, "-p", "no:cacheprovider", *failed),
        )
        if again.exists():
            self.counts.add_rerun(name, again)
        if self.steps[-1][1] and not self.counts.too_flaky:
            self.steps[-2] = (self.steps[-2][0], True, self.steps[-2][2])


def lint(run: CheckRun) -> None:
    run.command("ruff check", *_tool("ruff"), "check", *SOURCES)
    run.command("ruff format", *_tool("ruff"), "format", "--check", *SOURCES)
    run.command("types", *_tool("mypy"), *SOURCES)
    run.command("layers", Path(sys.executable).parent / "lint-imports", "--no-logo")


def system_packages(run: CheckRun) -> None:
    def provided() -> bool:
        lacking = system_tools.install_missing()
        run.skipped.extend(f"part {line}" for line in lacking)
        print(*lacking or ["all there"], sep="\n")
        return not (lacking and os.environ.get("CI"))

    run.step("debian parts", provided)


def wheel(run: CheckRun) -> None:
    run.command("wheel", sys.executable, ROOT / "tools" / "wheel_env.py")


def tests(run: CheckRun) -> None:
    run.pytest("tests in parallel", sys.executable, "-m", "not serial", parallel=WORKERS)
    run.pytest("tests one by one", sys.executable, "-m", "serial")


def pythons(run: CheckRun) -> None:
    """The unit tests on the other Pythons that are here; one that is not is no fault of the
    code.
    """
    for version in other_pythons.other_versions():
        if version in run.environments:
            _unit_tests(run, version, run.environments[version])
        else:
            run.skipped.append(f"unit tests on Python {version}: not on this machine")


def sizes(run: CheckRun) -> None:
    run.command("sizes of src", sys.executable, ROOT / "tools" / "size_limits.py")


GROUPS = {group.__name__: group for group in (lint, system_packages, wheel, tests, pythons, sizes)}


def main(wanted: Sequence[str]) -> int:
    run = CheckRun()
    REPORTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as background:
        if "tests" in (wanted or GROUPS):
            background.submit(_collect, sys.executable, "tests")
        if "pythons" in (wanted or GROUPS):
            run.environments = _environments(background)
        for name in wanted or GROUPS:
            GROUPS[name](run)
    return _summary(run, counted="tests" in (wanted or GROUPS))


def _environments(background: ThreadPoolExecutor) -> dict[str, Future[Path]]:
    """Start to make the environment of each other Python that is on this machine."""
    found = {
        version: other_pythons.find_interpreter(version)
        for version in other_pythons.other_versions()
    }
    return {
        version: background.submit(_environment, version, interpreter)
        for version, interpreter in found.items()
        if interpreter is not None
    }


def _environment(version: str, interpreter: str) -> Path:
    python = other_pythons.environment(version, interpreter)
    _collect(python, "tests/unit")
    return python


def _collect(python: str | Path, folder: str) -> None:
    """Compile the tests once: several test processes would each do it at the same time."""
    subprocess.run(
        [python, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", folder],
        check=False,
        cwd=ROOT,
        env=_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _unit_tests(run: CheckRun, version: str, environment: Future[Path]) -> None:
    run.step(f"environment for Python {version}", lambda: environment.result().exists())
    if run.steps[-1][1]:
        run.pytest(
            f"unit tests on Python {version}",
            environment.result(),
            "--hypothesis-profile=few",
            "tests/unit",
            parallel=UNIT_WORKERS,
        )


def _summary(run: CheckRun, *, counted: bool) -> int:
    print("\n── summary")
    for name, passed, seconds in run.steps:
        print(f"{'ok  ' if passed else 'FAIL'} {seconds:6.1f} s  {name}")
    for line in [*run.skipped, *run.counts.skip_reasons()]:
        print(f"skipped: {line}")
    for name, failure in run.counts.flaky.items():
        print(
            f"FLAKY {name} failed in the parallel run and passed alone; its first failure "
            f"was:\n{failure}"
        )
    if run.counts.too_flaky:
        print(f"{len(run.counts.flaky)} flaky tests; at most {MOST_FLAKY} are let through")
    if counted:
        print(f"total: {run.counts}")
    empty = counted and not run.counts.passed
    return 1 if empty or not all(passed for _, passed, _ in run.steps) else 0


def _report(name: str) -> Path:
    """Return where the XML report of a run goes; an old one is removed."""
    report = REPORTS / f"{name.replace(' ', '-')}.xml"
    report.unlink(missing_ok=True)
    return report


def _pytest(python: str | Path, report: Path, *arguments: str | Path) -> bool:
    return _call((python, "-m", "pytest", f"--junit-xml={report}", *arguments)) in {
        0,
        NO_TESTS_COLLECTED,
    }


def _failed_tests() -> list[str]:
    """Return the failed tests of the last run; none if there are too many to be run again."""
    failed = json.loads(LAST_FAILED.read_text(encoding="utf-8")) if LAST_FAILED.exists() else {}
    return sorted(failed) if len(failed) <= MOST_AGAIN else []


def _tool(module: str) -> tuple[str, str, str]:
    return (sys.executable, "-m", module)


def _environ() -> dict[str, str]:
    """Let test processes, and the thousands of interpreters that they start, share byte code."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _call(command: Sequence[str | Path]) -> int:
    return subprocess.run(
        command, check=False, cwd=ROOT, env=_environ(), stdin=subprocess.DEVNULL
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
