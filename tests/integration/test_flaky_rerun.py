from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import check
from test_counts import TestCounts

FLAKY = (
    "import pathlib\ndef test_{0}():\n    seen = pathlib.Path('seen-{0}')\n    was = "
    "seen.exists()\n    seen.touch()\n    assert was\n"
)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own that `tools/check.py` runs pytest in."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, value in {"ROOT": tmp_path, "REPORTS": tmp_path / "reports"}.items():
        monkeypatch.setattr(check, name, value)
    monkeypatch.setattr(
        check, "LAST_FAILED", tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    )
    return tmp_path


def run_pytest(folder: Path, **files: str) -> check.CheckRun:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    run = check.CheckRun()
    run.pytest("tests", sys.executable, "-p", "no:randomly", parallel=1)
    return run


def test_a_test_that_passes_alone_is_listed_as_flaky_and_the_run_passes(checked: Path) -> None:
    run = run_pytest(checked, one=FLAKY.format("one"), good="def test_good(): pass\n")
    assert all(passed for _, passed, _ in run.steps)
    assert ["tests: test_one.test_one"] == list(run.counts.flaky)
    assert "assert was" in run.counts.flaky["tests: test_one.test_one"]
    assert "2 passed, 0 failed, 0 skipped" == str(run.counts)


def test_a_test_that_fails_alone_too_fails_the_run(checked: Path) -> None:
    run = run_pytest(checked, one=FLAKY.format("one"), bad="def test_bad(): assert False\n")
    assert not all(passed for _, passed, _ in run.steps)
    assert "1 passed, 1 failed, 0 skipped" == str(run.counts)


def test_more_than_two_flaky_tests_fail_the_run(checked: Path) -> None:
    run = run_pytest(checked, many="\n".join(FLAKY.format(name) for name in ("a", "b", "c")))
    assert not all(passed for _, passed, _ in run.steps)
    assert run.counts.too_flaky


def test_a_failure_in_the_test_and_in_its_tear_down_counts_once(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<t><testcase classname="m" name="a"><failure/></testcase><testcase classname="m" '
        'name="a"><error/></testcase></t>'
    )
    counts = TestCounts()
    counts.add("tests", report)
    assert "0 passed, 1 failed, 0 skipped" == str(counts)


def test_signals_that_the_shell_had_ignored_have_their_default_meaning_in_tests() -> None:
    code = (
        "import signal; print(*(signal.getsignal(number) is signal.SIG_IGN for number in "
        "(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)))"
    )

    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    probe = (
        f"import conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], "
        f"check=True)"
    )
    path = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, "-c", probe],
        check=True,
        preexec_fn=ignore,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "False False False" == done.stdout.strip()
