"""The circumstances of a program: who it runs as, where, with which environment and within which
limits.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from polling import complete_lines, eventually
from run_process import PYTHON
from up_process import NO_BACKOFF, SLEEPER, UpProcess, py, sh, start_up, write_config

PRINT_ENVIRONMENT = r"""
import json, os, resource
files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
facts = dict(cwd=os.getcwd(), umask=os.umask(0), nice=os.nice(0), files=files, env=dict(os.environ))
print(json.dumps(facts))
"""


def printed(run: UpProcess, name: str) -> dict[str, object]:
    """What the program has said of itself, once it has ended."""
    run.wait_for_event("clean_exit", program=name)
    assert eventually(lambda: complete_lines(run.logs / f"{name}.log") != [])
    facts: dict[str, object] = json.loads((run.logs / f"{name}.log").read_text())
    return facts


def test_directory_umask_limits_and_environment_are_as_the_file_says(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    own = {
        "cwd": "sub",
        "umask": "027",
        "limits": {"open_files": 123, "nice": 7},
        "env": {"MINE": "a b", "OVER": "file"},
    }
    ours = {
        "PORT": "1234",
        "DEBUG": "app:*",
        "OVER": "ours",
        "LONGWATCH_STATE_DIR": ".longwatch",
        "NOTIFY_SOCKET": "/not/theirs",
    }
    with start_up(
        longwatch_bin,
        tmp_path,
        {"own": py(PRINT_ENVIRONMENT, **own), "plain": py(PRINT_ENVIRONMENT)},
        env=ours,
    ) as run:
        mine, plain = printed(run, "own"), printed(run, "plain")
        run.stop_cleanly()
    assert (str(tmp_path / "sub"), 0o27, 7, 123) == (
        mine["cwd"],
        mine["umask"],
        mine["nice"],
        mine["files"],
    )
    assert str(tmp_path) == plain["cwd"]
    environments = [dict(facts["env"]) for facts in (mine, plain)]  # type: ignore[call-overload]
    for env in environments:
        assert "/not/theirs" != env.pop("NOTIFY_SOCKET")
        assert {"MANAGED_BY": "longwatch", "PORT": "1234", "DEBUG": "app:*"} == {
            key: env.pop(key) for key in ("MANAGED_BY", "PORT", "DEBUG")
        }
    assert [("a b", "file"), (None, "ours")] == [
        (env.get("MINE"), env["OVER"]) for env in environments
    ]
    assert [] == [
        key
        for env in environments
        for key in env
        if key.startswith("LONGWATCH_") and key != "LONGWATCH_OWNER"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as somebody else")
def test_a_program_runs_as_its_user_and_can_notify_us(longwatch_bin: Path, tmp_path: Path) -> None:
    script = (
        'id -un; id -gn; id -G; echo "$USER $HOME"; pwd; test -w "$NOTIFY_SOCKET" && echo can '
        "notify; exec sleep 1000"
    )
    check = {
        "command": ["sh", "-c", "test $(id -un) = nobody"],
        "startup": 20,
        "startup_interval": 0.1,
    }
    with start_up(
        longwatch_bin, tmp_path, {"a": sh(script, user="nobody", cwd="/", health=check)}
    ) as run:
        run.wait_for_event("program_ready", program="a")
        run.wait_for_output("a | can notify")
        run.stop_cleanly()
    lines = (run.logs / "a.log").read_text().splitlines()
    assert ["nobody", "nogroup", "65534"] == lines[:3]
    assert ["nobody", "/"] == [lines[3].split()[0], lines[4]]


def test_a_program_that_needs_more_memory_than_it_may_have_ends_with_that_cause(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    hungry = "held = []\nwhile len(held) < 1000: held.append(bytearray(b'x') * (1 << 20))"
    program = {"command": [*PYTHON, hungry], "limits": {"memory": "80MB"}, "restart": "never"}
    with start_up(longwatch_bin, tmp_path, {"hungry": program, "other": SLEEPER}) as run:
        facts = run.wait_for_status("hungry", state="ended")
        assert "memory" == facts["last_end"]["cause"]
        assert run.status("other")["up"]
        run.stop_cleanly()


def test_debug_is_heard_and_relative_paths_begin_at_the_file(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    write_config(tmp_path / "etc", {"a": sh("pwd; exec sleep 1000")})
    options = ("--config", "etc/longwatch.toml")
    with start_up(longwatch_bin, tmp_path, options=options, env={"DEBUG": "1"}) as run:
        assert "a" in run.wait_for_event("settings_loaded")["settings"]["program"]
        run.wait_for_output(f"a | {tmp_path}/etc")
        status = run.run_command("status", *options)
        assert (0, "") == (status.returncode, status.stderr)
        assert (tmp_path / "etc" / ".longwatch" / "logs" / "a.log").exists()
        run.stop_cleanly()
    assert not (tmp_path / ".longwatch").exists()


def test_without_a_state_directory_programs_are_kept_up_and_no_file_is_left(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(
        longwatch_bin, tmp_path, {"a": {**SLEEPER, **NO_BACKOFF}}, options=("--state-dir", "off")
    ) as run:
        os.kill(run.wait_for_event("program_started", program="a")["pid"], signal.SIGKILL)
        run.wait_for_event("program_started", program="a", times=2)
        run.stop_cleanly()
    assert ["longwatch.toml"] == [path.name for path in tmp_path.iterdir()]


def test_a_command_that_vanishes_is_told_and_backed_off_from(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.symlink_to("/bin/sleep")
    program = {"command": ["./tool", "1000"], **NO_BACKOFF, "breaker": {"restarts": 2}}
    with start_up(longwatch_bin, tmp_path, {"a": program, "other": SLEEPER}) as run:
        first = run.wait_for_event("program_started", program="a")["pid"]
        tool.unlink()
        os.kill(first, signal.SIGKILL)
        assert "cannot execute './tool'" in run.wait_for_event("spawn_error", program="a")["detail"]
        assert "spawn_error" == run.wait_for_status("a", state="broken")["last_end"]["cause"]
        assert run.status("other")["up"]
        run.stop_cleanly()
