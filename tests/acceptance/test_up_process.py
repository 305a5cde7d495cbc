"""The circumstances of a program: who it runs as, where, with which environment and within which
limits.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from supervised import PYTHON
from upheld import AT_ONCE, SLEEPER, Upheld, py, sh, upheld, write_config

TELL = r"""
import json, os, resource
files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
facts = dict(cwd=os.getcwd(), umask=os.umask(0), nice=os.nice(0), files=files, env=dict(os.environ))
print(json.dumps(facts))
"""


def told(run: Upheld, name: str) -> dict[str, object]:
    """What the program has said of itself, once it has ended."""
    run.heard("clean_exit", program=name)
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
    with upheld(
        longwatch_bin, tmp_path, {"own": py(TELL, **own), "plain": py(TELL)}, env=ours
    ) as run:
        mine, plain = told(run, "own"), told(run, "plain")
        run.finish()
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
    with upheld(
        longwatch_bin, tmp_path, {"a": sh(script, user="nobody", cwd="/", health=check)}
    ) as run:
        run.heard("program_ready", program="a")
        run.says("a | can notify")
        run.finish()
    lines = (run.logs / "a.log").read_text().splitlines()
    assert ["nobody", "nogroup", "65534"] == lines[:3]
    assert ["nobody", "/"] == [lines[3].split()[0], lines[4]]


def test_a_program_that_needs_more_memory_than_it_may_have_ends_with_that_cause(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    hungry = "held = []\nwhile len(held) < 1000: held.append(bytearray(b'x') * (1 << 20))"
    program = {"command": [*PYTHON, hungry], "limits": {"memory": "80MB"}, "restart": "never"}
    with upheld(longwatch_bin, tmp_path, {"hungry": program, "other": SLEEPER}) as run:
        facts = run.until("hungry", state="ended")
        assert "memory" == facts["last_end"]["cause"]
        assert run.status("other")["up"]
        run.finish()


def test_debug_is_heard_and_relative_paths_begin_at_the_file(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    write_config(tmp_path / "etc", {"a": sh("pwd; exec sleep 1000")})
    options = ("--config", "etc/longwatch.toml")
    with upheld(longwatch_bin, tmp_path, options=options, env={"DEBUG": "1"}) as run:
        assert "a" in run.heard("settings_in_effect")["settings"]["program"]
        run.says(f"a | {tmp_path}/etc")
        status = run.command("status", *options)
        assert (0, "") == (status.returncode, status.stderr)
        assert (tmp_path / "etc" / ".longwatch" / "logs" / "a.log").exists()
        run.finish()
    assert not (tmp_path / ".longwatch").exists()


def test_without_a_state_directory_programs_are_kept_up_and_no_file_is_left(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with upheld(
        longwatch_bin, tmp_path, {"a": {**SLEEPER, **AT_ONCE}}, options=("--state-dir", "off")
    ) as run:
        os.kill(run.heard("program_started", program="a")["pid"], signal.SIGKILL)
        run.heard("program_started", program="a", times=2)
        run.finish()
    assert ["longwatch.toml"] == [path.name for path in tmp_path.iterdir()]


def test_a_command_that_vanishes_is_told_and_backed_off_from(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.symlink_to("/bin/sleep")
    program = {"command": ["./tool", "1000"], **AT_ONCE, "breaker": {"restarts": 2}}
    with upheld(longwatch_bin, tmp_path, {"a": program, "other": SLEEPER}) as run:
        first = run.heard("program_started", program="a")["pid"]
        tool.unlink()
        os.kill(first, signal.SIGKILL)
        assert "cannot execute './tool'" in run.heard("spawn_error", program="a")["detail"]
        assert "spawn_error" == run.until("a", state="broken")["last_end"]["cause"]
        assert run.status("other")["up"]
        run.finish()
