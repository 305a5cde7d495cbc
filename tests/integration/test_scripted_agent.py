"""The scripted agent as a process, in a workspace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polling import eventually

AGENT = [sys.executable, "-m", "longwatch.runner.scripted_agent"]
EVENT = {"severity": "error", "resource": "Pod/shop/cart", "context": {"namespace": "shop"}}
TIMEOUT = 60


def start(workspace: Path, *options: str, **fields: object) -> subprocess.Popen[bytes]:
    (workspace / "event.json").write_text(json.dumps(EVENT | fields))
    return subprocess.Popen(
        [*AGENT, *options],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run(workspace: Path, *options: str, **fields: object) -> tuple[int, bytes, bytes]:
    with start(workspace, *options, **fields) as agent:
        out, err = agent.communicate(timeout=TIMEOUT)
        return agent.returncode, out, err


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


def test_it_writes_a_report_about_the_event(workspace: Path) -> None:
    assert (0, b"report written: output/report.md\n", b"") == run(workspace)
    assert "Pod/shop/cart" in (workspace / "output" / "report.md").read_text()


@pytest.mark.parametrize(
    ("options", "fields", "code"),
    [
        (["--do", "fail"], {}, 1),
        (["--do", "crash"], {}, -signal.SIGSEGV),
        (["--when", "context.namespace=shop:fail"], {}, 1),
        (["--when", "context.namespace=other:fail"], {}, 0),
        (["--when", "context.namespace.x=y:fail"], {}, 0),
        (["--when", "severity=error:no-output", "--do", "fail"], {}, 0),
        (["--do", "fail"], {"script": "succeed"}, 0),
        ([], {"script": "fail"}, 1),
        ([], {"script": "dance"}, 0),
        (["--do", "dance"], {}, 2),
        (["--when", "severity:fail"], {}, 2),
    ],
)
def test_the_script_says_how_it_ends(
    workspace: Path, options: list[str], fields: dict[str, Any], code: int
) -> None:
    assert code == run(workspace, *options, **fields)[0]


def test_without_output_there_is_no_report(workspace: Path) -> None:
    assert (0, b"", b"") == run(workspace, "--do", "no-output")
    assert not (workspace / "output").exists()


def test_a_flood_has_the_size_that_was_asked_for(workspace: Path) -> None:
    code, out, _ = run(workspace, "--do", "flood", "--flood-bytes", "1000001")
    assert (0, 1000001) == (code, len(out) - len(b"report written: output/report.md\n"))


def test_it_fails_at_the_first_attempt_only(workspace: Path) -> None:
    codes = [
        run(workspace, "--do", "fail-first", longwatch={"attempt": attempt})[0]
        for attempt in (1, 2, 3)
    ]
    assert [1, 0, 0] == codes


@pytest.mark.parametrize(("action", "ends_by"), [("hang", True), ("ignore-sigterm", False)])
def test_a_hanging_one_heeds_sigterm_or_not(workspace: Path, action: str, ends_by: bool) -> None:  # noqa: FBT001
    with start(workspace, "--do", action) as agent:
        assert agent.stdout is not None
        assert b"hanging\n" == agent.stdout.readline()
        agent.terminate()
        if not ends_by:
            with pytest.raises(subprocess.TimeoutExpired):
                agent.wait(0.3)
            agent.kill()
        assert -(signal.SIGTERM if ends_by else signal.SIGKILL) == agent.wait(TIMEOUT)


@pytest.mark.parametrize("action", ["fork", "escape", "hold-pipe"])
def test_it_leaves_a_child_behind(workspace: Path, action: str) -> None:
    with start(workspace, "--do", action) as agent:
        assert 0 == agent.wait(TIMEOUT)
        left = [pid for pid in _pids_in(workspace) if pid != agent.pid]
        try:
            assert 1 == len(left)
            assert (os.getsid(left[0]) == agent.pid) == (action != "escape")
        finally:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not _pids_in(workspace))


def _pids_in(workspace: Path) -> list[int]:
    """The processes whose working directory is the workspace."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").readlink() == workspace:
                found.append(int(entry.name))
    return found


def test_it_logs_each_run(workspace: Path) -> None:
    log = workspace / "log"
    facts = {"run": "r1", "event": "e1", "attempt": 2}
    run(workspace, "--log", str(log), faultId="f1", longwatch=facts)
    [line] = log.read_text().splitlines()
    assert (facts | {"fault": "f1"}).items() <= json.loads(line).items()
