"""SIGHUP and `longwatch reload`: only what changed is touched, and a file with faults changes
nothing.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from upheld import AT_ONCE, SLEEPER, Facts, Upheld, sh, upheld, write_config

BEFORE: dict[str, Facts] = {
    "same": SLEEPER,
    "changed": SLEEPER,
    "updated": SLEEPER,
    "gone": SLEEPER,
    "held": SLEEPER,
}
AFTER: dict[str, Facts] = {
    "same": SLEEPER,
    "changed": {**SLEEPER, "env": {"NEW": "1"}},
    "updated": {**SLEEPER, "stop_grace": 3.0, "log": {"keep": 1}},
    "held": {**SLEEPER, "env": {"NEW": "1"}},
    "new": SLEEPER,
}


def up_and_running(run: Upheld, *programs: str) -> dict[str, int | None]:
    for name in programs:
        run.heard("program_started", program=name)
    return run.pids()


def test_sighup_touches_only_what_changed(longwatch_bin: Path, tmp_path: Path) -> None:
    with upheld(longwatch_bin, tmp_path, BEFORE) as run:
        before = up_and_running(run, *BEFORE)
        run.ask("stop", "held")
        write_config(tmp_path, AFTER)
        run.signal(signal.SIGHUP)
        told = run.heard("plan_reloaded")
        lists = [told[key] for key in ("added", "changed", "updated", "removed")]
        assert [["new"], ["changed", "held"], ["updated"], ["gone"]] == lists
        run.heard("program_started", program="changed", times=2)
        run.heard("program_started", program="new")
        after = run.pids()
        assert ["same", "changed", "updated", "held", "new"] == sorted(after, key=[*AFTER].index)
        assert (before["same"], before["updated"], None) == (
            after["same"],
            after["updated"],
            after["held"],
        )
        assert before["changed"] != after["changed"]
        assert not Path(f"/proc/{before['gone']}").exists()
        run.ask("stop", "updated")
        assert 3.0 == run.heard("program_stopping", program="updated")["grace"], (
            "what can change as it runs has"
        )
        assert 1 == len(run.records("program_started", program="same"))
        run.finish()
    assert [(1, "reload"), (15, "stop")] == [
        (got["signal"], got["action"]) for got in run.told("signal_received")
    ]


def test_the_command_tells_what_was_done_and_a_second_one_that_there_is_nothing_to_do(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with upheld(longwatch_bin, tmp_path, BEFORE) as run:
        up_and_running(run, *BEFORE)
        write_config(tmp_path, AFTER)
        done = run.command("reload")
        assert (0, "") == (done.returncode, done.stderr)
        assert [
            "added: new",
            "changed: changed, held",
            "updated: updated",
            "removed: gone",
        ] == done.stdout.splitlines()
        assert "nothing has changed\n" == run.command("reload").stdout
        run.finish()


BAD = {
    "not TOML": "[program.a\n",
    "unknown key": '[program.a]\ncommand = ["sleep", "1000"]\nrestrat = "never"\n',
    "circle": '[program.a]\ncommand = ["true"]\ndepends_on = ["a"]\n',
    "no command": '[program.a]\ncommand = ["/no/such/program"]\n',
    "no program": "",
}


def test_a_file_with_faults_is_refused_and_everything_goes_on(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with upheld(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}) as run:
        before = up_and_running(run, "a", "b")
        for times, text in enumerate(BAD.values(), start=1):
            (tmp_path / "longwatch.toml").write_text(text)
            run.signal(signal.SIGHUP)
            assert run.heard("reload_refused", times=times)["reason"].startswith(
                "longwatch.toml"
            ), text
        (tmp_path / "longwatch.toml").unlink()
        run.signal(signal.SIGHUP)
        run.heard("reload_refused", times=len(BAD) + 1)
        assert before == run.pids()
        write_config(tmp_path, {"a": SLEEPER})
        run.signal(signal.SIGHUP)
        assert ["b"] == run.heard("plan_reloaded")["removed"]
        assert {"a": before["a"]} == run.pids()
        run.finish()


def test_the_command_tells_the_fault_in_one_line_with_2(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with upheld(longwatch_bin, tmp_path, {"a": SLEEPER}) as run:
        before = up_and_running(run, "a")
        (tmp_path / "longwatch.toml").write_text(BAD["unknown key"])
        done = run.command("reload")
        assert (2, "") == (done.returncode, done.stdout)
        [line] = done.stderr.splitlines()
        assert "program.a.restrat" in line
        assert "did you mean restart?" in line
        assert before == run.pids()
        run.finish()


@pytest.mark.parametrize("meanwhile", ["is broken", "waits"])
def test_a_program_that_is_not_up_follows_its_new_plan_at_once(
    longwatch_bin: Path, tmp_path: Path, meanwhile: str
) -> None:
    limit = (
        {**AT_ONCE, "breaker": {"restarts": 1}}
        if meanwhile == "is broken"
        else {"backoff": {"initial": 1000, "cap": 1000}}
    )
    with upheld(longwatch_bin, tmp_path, {"a": sh("exit 1", **limit)}) as run:
        run.until("a", state="broken" if meanwhile == "is broken" else "waiting")
        write_config(tmp_path, {"a": {**SLEEPER, **limit}})
        run.signal(signal.SIGHUP)
        run.until("a", state="up", consecutive_failures=0)
        run.finish()


def leaves_when(file: str) -> Facts:
    """A program that takes its time to stop: until this file is there."""
    return sh(
        f"trap 'until test -e {file}; do sleep 0.02; done; exit 0' TERM; echo ready; while :; "
        f"do sleep 0.05; done"
    )


def test_a_program_that_comes_back_while_it_leaves_has_one_place_and_one_process(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with upheld(longwatch_bin, tmp_path, {"a": leaves_when("leave"), "b": SLEEPER}) as run:
        run.says("a | ready")
        write_config(tmp_path, {"b": SLEEPER})
        run.signal(signal.SIGHUP)
        run.heard("program_stopping", program="a")
        write_config(tmp_path, {"a": SLEEPER, "b": SLEEPER})
        run.signal(signal.SIGHUP)
        run.heard("signal_received", action="reload", times=2)
        (tmp_path / "leave").touch()
        assert [["a"], []] == [
            run.heard("plan_reloaded", times=times)["removed"] for times in (1, 2)
        ]
        second = run.heard("program_started", program="a", times=2)["pid"]
        assert second == run.until("a", up=True)["pid"]
        run.finish()


def test_a_stop_during_a_reload_starts_nothing_any_more(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """What leaves by the reload has left while the stop still waits for another one."""
    with upheld(
        longwatch_bin, tmp_path, {"a": leaves_when("1"), "b": SLEEPER, "c": leaves_when("2")}
    ) as run:
        run.says("a | ready")
        run.says("c | ready")
        write_config(
            tmp_path, {"b": {**SLEEPER, "env": {"NEW": "1"}}, "c": leaves_when("2"), "d": SLEEPER}
        )
        run.signal(signal.SIGHUP)
        run.heard("program_stopping", program="a")
        run.signal(signal.SIGTERM)
        run.heard("shutdown_complete", program="b")
        (tmp_path / "1").touch()
        run.heard("shutdown_complete", program="a")
        (tmp_path / "2").touch()
        assert 0 == run.end()
    assert ["a", "b", "c"] == sorted(record["program"] for record in run.told("program_started"))
