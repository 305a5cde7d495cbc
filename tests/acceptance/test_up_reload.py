"""SIGHUP and `longwatch reload`: only what changed is touched, and a file with faults changes
nothing.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from up_process import NO_BACKOFF, SLEEPER, Facts, UpProcess, sh, start_up, write_config

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


def up_and_running(run: UpProcess, *programs: str) -> dict[str, int | None]:
    for name in programs:
        run.wait_for_event("program_started", program=name)
    return run.pids()


def test_sighup_touches_only_what_changed(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_up(longwatch_bin, tmp_path, BEFORE) as run:
        before = up_and_running(run, *BEFORE)
        run.request("stop", "held")
        write_config(tmp_path, AFTER)
        run.signal(signal.SIGHUP)
        told = run.wait_for_event("config_reloaded")
        lists = [told[key] for key in ("added", "changed", "updated", "removed")]
        assert [["new"], ["changed", "held"], ["updated"], ["gone"]] == lists
        run.wait_for_event("program_started", program="changed", times=2)
        run.wait_for_event("program_started", program="new")
        after = run.pids()
        assert ["same", "changed", "updated", "held", "new"] == sorted(after, key=[*AFTER].index)
        assert (before["same"], before["updated"], None) == (
            after["same"],
            after["updated"],
            after["held"],
        )
        assert before["changed"] != after["changed"]
        assert not Path(f"/proc/{before['gone']}").exists()
        run.request("stop", "updated")
        assert 3.0 == run.wait_for_event("program_stopping", program="updated")["grace"], (
            "what can change as it runs has"
        )
        assert 1 == len(run.matching_events("program_started", program="same"))
        run.stop_cleanly()
    assert [(1, "reload"), (15, "stop")] == [
        (got["signal"], got["action"]) for got in run.events("signal_received")
    ]


def test_the_command_tells_what_was_done_and_a_second_one_that_there_is_nothing_to_do(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, BEFORE) as run:
        up_and_running(run, *BEFORE)
        write_config(tmp_path, AFTER)
        done = run.run_command("reload")
        assert (0, "") == (done.returncode, done.stderr)
        assert [
            "added: new",
            "changed: changed, held",
            "updated: updated",
            "removed: gone",
        ] == done.stdout.splitlines()
        assert "nothing has changed\n" == run.run_command("reload").stdout
        run.stop_cleanly()


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
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}) as run:
        before = up_and_running(run, "a", "b")
        for times, text in enumerate(BAD.values(), start=1):
            (tmp_path / "longwatch.toml").write_text(text)
            run.signal(signal.SIGHUP)
            assert run.wait_for_event("config_reload_rejected", times=times)["reason"].startswith(
                "longwatch.toml"
            ), text
        (tmp_path / "longwatch.toml").unlink()
        run.signal(signal.SIGHUP)
        run.wait_for_event("config_reload_rejected", times=len(BAD) + 1)
        assert before == run.pids()
        write_config(tmp_path, {"a": SLEEPER})
        run.signal(signal.SIGHUP)
        assert ["b"] == run.wait_for_event("config_reloaded")["removed"]
        assert {"a": before["a"]} == run.pids()
        run.stop_cleanly()


def test_the_command_tells_the_fault_in_one_line_with_2(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER}) as run:
        before = up_and_running(run, "a")
        (tmp_path / "longwatch.toml").write_text(BAD["unknown key"])
        done = run.run_command("reload")
        assert (2, "") == (done.returncode, done.stdout)
        [line] = done.stderr.splitlines()
        assert "program.a.restrat" in line
        assert "did you mean restart?" in line
        assert before == run.pids()
        run.stop_cleanly()


@pytest.mark.parametrize("meanwhile", ["is broken", "waits"])
def test_a_program_that_is_not_up_follows_its_new_plan_at_once(
    longwatch_bin: Path, tmp_path: Path, meanwhile: str
) -> None:
    limit = (
        {**NO_BACKOFF, "breaker": {"restarts": 1}}
        if meanwhile == "is broken"
        else {"backoff": {"initial": 1000, "cap": 1000}}
    )
    with start_up(longwatch_bin, tmp_path, {"a": sh("exit 1", **limit)}) as run:
        run.wait_for_status("a", state="broken" if meanwhile == "is broken" else "waiting")
        write_config(tmp_path, {"a": {**SLEEPER, **limit}})
        run.signal(signal.SIGHUP)
        run.wait_for_status("a", state="up", consecutive_failures=0)
        run.stop_cleanly()


def leaves_when(file: str) -> Facts:
    """A program that takes its time to stop: until this file is there."""
    return sh(
        f"trap 'until test -e {file}; do sleep 0.02; done; exit 0' TERM; echo ready; while :; "
        f"do sleep 0.05; done"
    )


def test_a_program_that_comes_back_while_it_leaves_has_one_place_and_one_process(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": leaves_when("leave"), "b": SLEEPER}) as run:
        run.wait_for_output("a | ready")
        write_config(tmp_path, {"b": SLEEPER})
        run.signal(signal.SIGHUP)
        run.wait_for_event("program_stopping", program="a")
        write_config(tmp_path, {"a": SLEEPER, "b": SLEEPER})
        run.signal(signal.SIGHUP)
        run.wait_for_event("signal_received", action="reload", times=2)
        (tmp_path / "leave").touch()
        assert [["a"], []] == [
            run.wait_for_event("config_reloaded", times=times)["removed"] for times in (1, 2)
        ]
        second = run.wait_for_event("program_started", program="a", times=2)["pid"]
        assert second == run.wait_for_status("a", up=True)["pid"]
        run.stop_cleanly()


def test_a_stop_during_a_reload_starts_nothing_any_more(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """What leaves by the reload has left while the stop still waits for another one."""
    with start_up(
        longwatch_bin, tmp_path, {"a": leaves_when("1"), "b": SLEEPER, "c": leaves_when("2")}
    ) as run:
        run.wait_for_output("a | ready")
        run.wait_for_output("c | ready")
        write_config(
            tmp_path, {"b": {**SLEEPER, "env": {"NEW": "1"}}, "c": leaves_when("2"), "d": SLEEPER}
        )
        run.signal(signal.SIGHUP)
        run.wait_for_event("program_stopping", program="a")
        run.signal(signal.SIGTERM)
        run.wait_for_event("shutdown_complete", program="b")
        (tmp_path / "1").touch()
        run.wait_for_event("shutdown_complete", program="a")
        (tmp_path / "2").touch()
        assert 0 == run.wait()
    assert ["a", "b", "c"] == sorted(record["program"] for record in run.events("program_started"))
