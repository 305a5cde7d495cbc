"""`depends_on`: up in waves, down in reverse, and who waits says for whom."""

from __future__ import annotations

from pathlib import Path

from up_process import NOTIFY_PRELUDE, SLEEPER, UpProcess, py, sh, start_up

READY_WHEN_TOLD = NOTIFY_PRELUDE + "until('db-is-ready'); notify('READY=1'); time.sleep(1000)"

STACK = {
    "front": {**SLEEPER, "depends_on": {"web": "started"}},
    "web": {**SLEEPER, "depends_on": ["db"]},
    "db": py(READY_WHEN_TOLD, ready="notify", depends_on={"setup": "completed"}),
    "setup": sh("until test -e go; do sleep 0.02; done"),
}


def order(run: UpProcess, event: str) -> list[str]:
    return [record["program"] for record in run.events(event)]


def test_programs_start_when_what_they_wait_for_is_started_ready_or_completed_and_stop_in_reverse(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, STACK) as run:
        run.wait_for_status("setup", up=True)
        waits = {
            name: run.wait_for_status(name, state="pending")["waiting_for"]
            for name in ("front", "web", "db")
        }
        assert {
            "front": ["web: started"],
            "web": ["db: ready"],
            "db": ["setup: completed"],
        } == waits
        (tmp_path / "go").touch()
        run.wait_for_status("db", up=True, ready=False)
        assert "pending" == run.status("web")["state"], "up is not ready"
        (tmp_path / "db-is-ready").touch()
        run.wait_for_event("program_started", program="front")
        assert 0 == run.run_command("status").returncode
        run.stop_cleanly()
    assert ["setup", "db", "web", "front"] == order(run, "program_started")
    stops = [
        (told["event"], told["program"])
        for told in run.events()
        if told["event"] in {"program_stopping", "shutdown_complete"}
    ]
    assert [
        (event, name)
        for name in ("front", "web", "db")
        for event in ("program_stopping", "shutdown_complete")
    ] == stops


def test_what_failed_to_complete_keeps_others_waiting_until_it_is_run_again(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "setup": sh("test -e fixed", restart="never"),
        "web": {**SLEEPER, "depends_on": {"setup": "completed"}},
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        run.wait_for_event("unexpected_exit", program="setup")
        assert ["setup: completed"] == run.wait_for_status("web", state="pending")["waiting_for"]
        status = run.run_command("status")
        assert 1 == status.returncode
        assert "waits for setup: completed" in status.stdout
        late = run.run_command("start", "web", "--timeout", "0.1")
        assert (75, "longwatch: web waits for setup: completed\n") == (late.returncode, late.stderr)
        (tmp_path / "fixed").touch()
        run.run_command("start", "setup")
        run.wait_for_event("program_started", program="web")
        run.stop_cleanly()


def test_a_restart_of_what_others_wait_for_leaves_them_alone(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {"db": SLEEPER, "web": {**SLEEPER, "depends_on": ["db"]}}
    with start_up(longwatch_bin, tmp_path, programs) as run:
        web = run.wait_for_event("program_started", program="web")["pid"]
        run.request("restart", "db")
        assert web == run.status("web")["pid"]
        run.stop_cleanly()
    assert ["db", "web", "db"] == order(run, "program_started")
