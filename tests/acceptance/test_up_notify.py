"""sd_notify from any child: READY, STATUS, WATCHDOG, STOPPING, EXTEND_TIMEOUT."""

from __future__ import annotations

import signal
from pathlib import Path

from polling import eventually
from up_process import IGNORES_SIGTERM, NO_BACKOFF, NOTIFY_PRELUDE, SLEEPER, py, sh, start_up


def test_it_is_ready_when_it_says_so_shows_what_it_says_and_is_not_ready_while_it_leaves(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    script = NOTIFY_PRELUDE + (
        "notify('STATUS=warming up')\n"
        "until('go'); notify('READY=1', 'STATUS=serving 3 clients')\n"
        "until('leave'); notify('STOPPING=1')\n"
        "until('left')\n"
    )
    with start_up(longwatch_bin, tmp_path, {"a": py(script, ready="notify")}) as run:
        run.wait_for_status("a", up=True, ready=False, status_text="warming up")
        late = run.run_command("start", "a", "--ready", "--timeout", "0.1")
        assert (75, "longwatch: a is up, and not ready yet\n") == (late.returncode, late.stderr)
        (tmp_path / "go").touch()
        run.wait_for_status("a", ready=True, status_text="serving 3 clients")
        assert "serving 3 clients" in run.run_command("status").stdout
        (tmp_path / "leave").touch()
        run.wait_for_status("a", up=True, ready=False)
        (tmp_path / "left").touch()
        run.wait_for_event("clean_exit", program="a")
        run.stop_cleanly()
    assert 1 == len(run.events("program_ready"))


def test_what_the_children_of_a_program_say_counts_and_what_a_stranger_says_does_not_reach_it(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The socket belongs to the program's own environment: two programs have two, and each
    speaks for itself.
    """
    script = (
        NOTIFY_PRELUDE
        + "os.fork() or (notify('STATUS=' + sys.argv[1]), os._exit(0)); time.sleep(1000)"
    )
    with start_up(
        longwatch_bin, tmp_path, {"a": py(script, "of a"), "b": py(script, "of b")}
    ) as run:
        run.wait_for_status("a", status_text="of a")
        run.wait_for_status("b", status_text="of b")
        run.stop_cleanly()


def test_watchdog_trigger_has_it_started_again_at_once(longwatch_bin: Path, tmp_path: Path) -> None:
    script = (
        NOTIFY_PRELUDE
        + "os.path.exists('once') or (open('once', 'w'), notify('WATCHDOG=trigger')); "
        "time.sleep(1000)"
    )
    with start_up(longwatch_bin, tmp_path, {"a": py(script, **NO_BACKOFF)}) as run:
        run.wait_for_event("health_check_restart", program="a")
        run.wait_for_event("program_started", program="a", times=2)
        run.stop_cleanly()


def test_extend_timeout_is_honoured_at_the_start_and_at_the_stop(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """Whoever says nothing is ended by the same limits, so the extension is what saved the
    other.
    """
    script = NOTIFY_PRELUDE + (
        "def leave(*_):\n"
        "    notify('EXTEND_TIMEOUT_USEC=25000000')\n"
        "    until('left')\n"
        "    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "notify('EXTEND_TIMEOUT_USEC=25000000')\n"
        "until('go'); notify('READY=1'); time.sleep(1000)\n"
    )
    limits = {"ready": "notify", "ready_timeout": 4, "stop_grace": 4, **NO_BACKOFF}
    programs = {"polite": py(script, **limits), "silent": sh(IGNORES_SIGTERM, **limits)}
    with start_up(longwatch_bin, tmp_path, programs) as run:
        run.wait_for_event("program_started", program="silent", times=2)
        run.wait_for_status("polite", up=True, ready=False, total_restarts=0)
        (tmp_path / "go").touch()
        run.wait_for_event("program_ready", program="polite")
        run.wait_for_output("silent | ready")
        run.signal(signal.SIGTERM)
        run.wait_for_event("shutdown_complete", program="silent")
        (tmp_path / "left").touch()
        assert 1 == run.wait()
    assert ["exit 3"] == [
        end["cause"] for end in run.events("shutdown_complete") if end["program"] == "polite"
    ]
    assert 1 == len(
        [start for start in run.events("program_started") if start["program"] == "polite"]
    )


def test_a_heartbeat_that_is_expected_and_never_comes_has_it_restarted(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    never = {
        **SLEEPER,
        **NO_BACKOFF,
        "health": {"kind": "heartbeat", "interval": 0.1, "start_grace": 0},
    }
    with start_up(longwatch_bin, tmp_path, {"a": never}) as run:
        assert run.wait_for_event("health_check_restart", program="a")["restart"]
        assert eventually(lambda: run.status("a")["total_restarts"] > 0)
        run.stop_cleanly()
