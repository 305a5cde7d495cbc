"""`longwatch up` and programs of every kind: those that crash, hang, do not hear, fork, end, and
those that are well.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from polling import eventually
from run_process import TIMEOUT, kill_all, pids_with_token
from up_process import IGNORES_SIGTERM, NO_BACKOFF, SLEEPER, Facts, UpProcess, sh, start_up

FORKER = 'setsid sh -c \'setsid sleep "$0" & setsid sleep "$0" & echo forked\' "$0"; exit 7'
"""Leaves orphans in sessions of their own and fails."""
CRASHES_UNTIL_FIXED = "test -e fixed && exec sleep 1000; exit 1"


@pytest.fixture
def token() -> Iterator[str]:
    """A number of seconds that no other process sleeps for; whoever bears it after the test is
    killed.
    """
    word = f"98765.{secrets.randbits(60)}"
    yield word
    kill_all(pids_with_token(word))


def test_crasher_hanger_deaf_and_forker_are_dealt_with_while_the_healthy_live_on(
    longwatch_bin: Path, tmp_path: Path, token: str
) -> None:
    sleeper = {"command": ["sleep", token]}
    sick = {"command": ["false"], "interval": 0.05, "start_grace": 0.0, "failures": 2}
    programs = {
        "crasher": sh("exit 1", **NO_BACKOFF, breaker={"restarts": 2}),
        "hanger": {**sleeper, **NO_BACKOFF, "health": sick, "breaker": {"restarts": 2}},
        "deaf": sh(IGNORES_SIGTERM, stop_grace=0.2),
        "forker": {"command": ["sh", "-c", FORKER, token], "restart": "never"},
        "healthy": sleeper,
        "well": {**sleeper, "health": {**sick, "command": ["true"]}},
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        before = {
            name: run.wait_for_event("program_started", program=name)["pid"]
            for name in ("deaf", "healthy", "well")
        }
        run.wait_for_event("circuit_breaker_tripped", program="crasher", restarts=2)
        assert (
            "2 runs in a row ended by failed health checks"
            == run.wait_for_event("circuit_breaker_tripped", program="hanger")["reason"]
        )
        assert ("exit 7", False) == both(
            run.wait_for_event("unexpected_exit", program="forker"), "cause", "restart"
        )
        run.wait_for_event("health_check_passed", program="well")
        assert {**before, "crasher": None, "hanger": None, "forker": None} == run.pids()
        assert ["broken", "broken", "ended"] == [
            run.status(name)["state"] for name in ("crasher", "hanger", "forker")
        ]
        assert 2 == len(pids_with_token(token)), (
            "the orphans of the forker are gone, the healthy are not"
        )
        run.wait_for_output("deaf    | ready")
        run.signal(signal.SIGTERM)
        assert 1 == run.wait(), "somebody had to be killed"
        assert [] == pids_with_token(token)
    assert {"deaf": 2, "healthy": 0, "well": 0} == {
        end["program"]: end["killed"] for end in run.events("shutdown_complete")
    }


def both(record: Facts, *keys: str) -> tuple[object, ...]:
    return tuple(record[key] for key in keys)


def test_a_program_that_crashes_runs_again_after_the_backoff_and_no_earlier(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    patient = {**SLEEPER, "backoff": {"initial": 0.2, "factor": 2, "cap": 0.4}}
    with start_up(longwatch_bin, tmp_path, {"a": patient}) as run:
        for times, delay in ((1, 0.2), (2, 0.4), (3, 0.4)):
            os.kill(
                run.wait_for_event("program_started", program="a", times=times)["pid"],
                signal.SIGKILL,
            )
            assert (
                delay == run.wait_for_event("restart_scheduled", program="a", times=times)["delay"]
            )
            ended = run.wait_for_event(
                "unexpected_exit", program="a", cause="signal 9", times=times
            )
            assert delay - 0.01 <= seconds_between(
                ended, run.wait_for_event("program_started", program="a", times=times + 1)
            )
        facts = run.status("a")
        run.stop_cleanly()
    assert (3, 3, 0.4) == both(facts, "consecutive_failures", "total_restarts", "current_backoff")
    assert 3 == len(facts["restart_history"])


def seconds_between(earlier: Facts, later: Facts) -> float:
    return (
        datetime.fromisoformat(later["ts"]) - datetime.fromisoformat(earlier["ts"])
    ).total_seconds()


def test_each_end_gets_the_verdict_of_the_table_and_of_the_lists(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "clean": sh("exit 0"),
        "wrong": sh("exit 2"),
        "fatal": sh("exit 101"),
        "shell": sh("exit 143"),
        "final": sh("exit 7", no_restart_codes=[7]),
        "once": sh("exit 1", restart="never"),
        "again": sh(
            "exit 101",
            restart_codes=[101],
            **NO_BACKOFF,
            breaker={"restarts": 1, "cooldown": "off"},
        ),
        "always": sh(
            "exit 0", restart="always", **NO_BACKOFF, breaker={"restarts": 1, "cooldown": "off"}
        ),
        "killed": sh("kill -9 $$", **NO_BACKOFF, breaker={"restarts": 1, "cooldown": "off"}),
    }
    ended = {
        "clean": "clean_exit",
        "wrong": "configuration_error",
        "fatal": "fatal_error_no_restart",
        "shell": "intentional_signal",
        "final": "unexpected_exit",
        "once": "unexpected_exit",
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        for name, verdict in ended.items():
            assert (
                verdict
                == run.wait_for_status(name, state="ended", total_restarts=0)["last_end"]["verdict"]
            ), name
        for name in ("again", "always", "killed"):
            run.wait_for_status(name, state="broken", total_restarts=1)
        run.stop_cleanly(signal.SIGINT)


def test_sigterm_from_outside_is_taken_for_a_wish(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER}) as run:
        os.kill(run.wait_for_event("program_started")["pid"], signal.SIGTERM)
        run.wait_for_event("intentional_signal", program="a", restart=False)
        assert ("ended", "up") == both(run.wait_for_status("a", state="ended"), "state", "desired")
        run.stop_cleanly()


# --- the breaker ---


def test_after_the_cool_down_one_trial_is_made_and_one_that_stays_up_closes_the_breaker(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    fragile = sh(
        CRASHES_UNTIL_FIXED,
        **NO_BACKOFF,
        breaker={"restarts": 1, "cooldown": 0.2},
        stable_after=0.1,
    )
    with start_up(longwatch_bin, tmp_path, {"a": fragile, "other": SLEEPER}) as run:
        other = run.wait_for_event("program_started", program="other")["pid"]
        run.wait_for_event("circuit_breaker_tripped", program="a", times=2)
        (tmp_path / "fixed").touch()
        run.wait_for_event("program_stable", program="a")
        facts = run.wait_for_status("a", up=True, consecutive_failures=0)
        assert ("closed", "") == both(facts["breaker"], "phase", "reason")
        assert other == run.status("other")["pid"]
        run.stop_cleanly()
    starts_before_each_trip = [
        len(part.split("started")) - 1 for part in event_names(run, "a").split("tripped")
    ]
    assert [2, 1] == starts_before_each_trip[:2], (
        "two starts before it trips, and then one trial at a time"
    )


def event_names(run: UpProcess, program: str) -> str:
    words = {"program_started": "started", "circuit_breaker_tripped": "tripped"}
    return " ".join(
        words[told["event"]]
        for told in run.events()
        if told.get("program") == program and told["event"] in words
    )


def test_without_a_cool_down_it_waits_for_a_reset_by_hand(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    fragile = sh(CRASHES_UNTIL_FIXED, **NO_BACKOFF, breaker={"restarts": 1, "cooldown": "off"})
    with start_up(longwatch_bin, tmp_path, {"a": fragile}) as run:
        run.wait_for_event("circuit_breaker_tripped", program="a")
        facts = run.wait_for_status("a", state="broken")
        assert ("open", None, None) == (
            facts["breaker"]["phase"],
            facts["breaker"]["cooldown_left"],
            facts["next_start"],
        )
        (tmp_path / "fixed").touch()
        assert (0, "") == both_of(run.run_command("reset", "a"))
        run.wait_for_status("a", up=True, consecutive_failures=0)
        run.stop_cleanly()


def both_of(done: object) -> tuple[int, str]:
    return done.returncode, done.stderr  # type: ignore[attr-defined]


def test_a_critical_program_that_breaks_ends_everything_with_100_whatever_graces_others_have(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "vital": sh(
            "until test -e go; do sleep 0.05; done; exit 1",
            **NO_BACKOFF,
            breaker={"restarts": 1},
            critical=True,
        ),
        "deaf": sh(IGNORES_SIGTERM, stop_grace=1000),
        "other": SLEEPER,
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        run.wait_for_output("deaf  | ready")
        (tmp_path / "go").touch()
        run.wait_for_event("circuit_breaker_tripped", program="vital")
        assert 100 == run.wait()
    assert [100] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]
    assert {"deaf": "signal 9", "other": "signal 15"} == {
        end["program"]: end["cause"] for end in run.events("shutdown_complete")
    }


@pytest.mark.parametrize("code", [2, 101])
def test_a_critical_program_that_fails_for_good_ends_everything_with_100(
    longwatch_bin: Path, tmp_path: Path, code: int
) -> None:
    with start_up(
        longwatch_bin, tmp_path, {"vital": sh(f"exit {code}", critical=True), "other": SLEEPER}
    ) as run:
        assert 100 == run.wait()
    assert [] == run.events("restart_scheduled")


# --- the end ---


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_stop_signal_stops_all_and_ends_with_0(
    longwatch_bin: Path, tmp_path: Path, signum: int
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}) as run:
        pids = [run.wait_for_event("program_started", program=name)["pid"] for name in ("a", "b")]
        run.stop_cleanly(signum)
        assert [] == [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert ["signal 15"] * 2 == [end["cause"] for end in run.logged_events("shutdown_complete")]


def test_each_program_has_its_own_stop_signal_and_who_does_not_hear_it_is_killed_after_its_grace(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "polite": sh(
            "trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done", stop_signal="USR1"
        ),
        "deaf": sh(IGNORES_SIGTERM),
    }
    programs["deaf"]["stop_grace"] = 0.2
    with start_up(longwatch_bin, tmp_path, programs) as run:
        run.wait_for_output("polite | ready")
        run.wait_for_output("deaf   | ready")
        run.signal(signal.SIGTERM)
        assert 1 == run.wait()
    ends = {end["program"]: end for end in run.events("shutdown_complete")}
    assert ("exit 5", "signal 9") == (ends["polite"]["cause"], ends["deaf"]["cause"])
    assert {"polite": 10, "deaf": 15} == {
        told["program"]: told["signal"] for told in run.events("program_stopping")
    }


def test_a_second_signal_escalates(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_up(longwatch_bin, tmp_path, {"deaf": sh(IGNORES_SIGTERM, stop_grace=1000)}) as run:
        run.wait_for_output("deaf | ready")
        run.signal(signal.SIGTERM)
        run.wait_for_event("program_stopping", grace=1000.0)
        assert eventually(lambda: is_escalating(run)), (
            "a moment after the first, a second signal counts"
        )
        assert 1 == run.wait()
    assert [(signal.SIGTERM, "stop"), (signal.SIGINT, "escalate")] == [
        both(got, "signal", "action") for got in run.logged_events("signal_received")
    ]


def is_escalating(run: UpProcess) -> bool:
    if len(run.logged_events("signal_received")) > 1:
        return True
    run.signal(signal.SIGINT)
    return False


def test_one_deadline_ends_every_grace(longwatch_bin: Path, tmp_path: Path) -> None:
    programs = {
        "base": sh(IGNORES_SIGTERM, stop_grace=1000),
        "top": sh(IGNORES_SIGTERM, stop_grace=1000, depends_on=["base"]),
    }
    with start_up(longwatch_bin, tmp_path, programs, supervisor={"shutdown_timeout": 0.3}) as run:
        run.wait_for_output("base | ready")
        run.wait_for_output("top  | ready")
        run.signal(signal.SIGTERM)
        assert 1 == run.wait(TIMEOUT)
    assert {"signal 9"} == {end["cause"] for end in run.events("shutdown_complete")}


def test_a_stop_while_a_program_waits_for_its_next_start_is_clean(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """Neither a stop of that program nor one of the supervisor takes the code of its last run for
    the program's end: 100 of a critical program would end everything.
    """
    slow = {"backoff": {"initial": 1000, "cap": 1000}, "critical": True}
    programs = {
        "crasher": sh("exit 100", restart_codes=[100], **slow),
        "other": sh("exit 3", **slow),
        "healthy": SLEEPER,
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        run.wait_for_event("restart_scheduled", program="crasher")
        run.wait_for_event("restart_scheduled", program="other")
        run.wait_for_event("program_started", program="healthy")
        [stopped] = run.request("stop", "crasher")["programs"]
        assert ("stopped", True) == (stopped["state"], run.status("healthy")["up"])
        run.stop_cleanly()


def test_a_stop_before_the_programs_have_come_up_ends_with_0(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {f"p{number}": SLEEPER for number in range(20)}) as run:
        run.wait_for_event("supervisor_started")
        run.stop_cleanly()
    assert len(run.events("program_started")) == len(run.events("shutdown_complete"))
