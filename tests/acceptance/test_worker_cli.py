"""`longwatch worker`: what it refuses, how it ends, what it answers for, and what its processes
find around them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import requires
from polling import eventually
from postgres_server import shared_server
from process_facts import command_line, is_zombie
from run_process import run_longwatch
from up_process import FROM_SOURCE
from worker_process import (
    HttpReply,
    WorkerProcess,
    is_drained,
    migrate,
    opened_mailbox,
    parse_metrics,
    read_beat_pages,
    send,
    short_directory,
    start_worker,
    store_url,
    write_app,
)


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A runtime directory of its own."""
    with short_directory() as directory:
        yield directory


# --- what cannot be ---

MARKS = "if sys.argv[1:2] == ['run']: open('started', 'w')\n"
LOOP = "Jobs(requests=open_mailbox(STORE, 'jobs'), name={!r})"
REFUSED = {
    "no such module": (
        "",
        "nothing:group",
        ["the module 'nothing' of 'nothing:group' was not found, neither in "],
    ),
    "no such name": ("", "app:gruop", ["app has no 'gruop'; did you mean group?"]),
    "no target": ("", "app", ["'app' is no import path; write it as module:name"]),
    "not a group": (
        "number = 5",
        "app:number",
        ["is of type int; it has to be a LoopGroup, a loop, a list of loops"],
    ),
    "the class of a loop": (
        "",
        "app:Jobs",
        ["missing 1 required keyword-only argument: 'requests'"],
    ),
    "a module that is not installed": (
        "import thingumabob",
        "app:group",
        [
            "'app:group' cannot be imported: ModuleNotFoundError: No module named 'thingumabob'",
            "app.py, line ",
        ],
    ),
    "an error in user code": (
        "1 / 0",
        "app:group",
        ["cannot be imported: ZeroDivisionError: division by zero", "app.py, line "],
    ),
    "an exit in user code": ("sys.exit(0)", "app:group", ["cannot be imported: SystemExit: 0"]),
    "a threshold no longer than a poll": (
        "none = LoopGroup([jobs], watchdog_threshold=0)",
        "app:none",
        ["watchdog_threshold (0 s) must be more than wait_time_seconds"],
    ),
    "two loops of one name": (
        f"two = [{LOOP.format('a')}, {LOOP.format('a')}]",
        "app:two",
        ["loops of a group need different names; more than one is called a"],
    ),
    "a handler that cannot be called": (
        (
            "class Odd(MainLoop):\n    def handle(self): pass\nodd = "
            "Odd(requests=open_mailbox(STORE, 'jobs'))"
        ),
        "app:odd",
        [
            "Odd.handle cannot be called with a request and a context",
            "write: def handle(self, request, context)",
        ],
    ),
}


def refusal(longwatch: Path, cwd: Path, *words: str) -> str:
    """The one line of it; exit code 2, and nothing was started."""
    done = run_longwatch(longwatch, cwd, "worker", *words, env={"STORE": store_url(cwd)})
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert not (cwd / "started").exists()
    [line] = done.stderr.splitlines()
    assert line.startswith("longwatch: ")
    return line


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_run_is_told_in_one_line_and_nothing_is_started(
    longwatch_bin: Path, tmp_path: Path, what: str
) -> None:
    more, target, words = REFUSED[what]
    write_app(tmp_path, MARKS + more)
    line = refusal(longwatch_bin, tmp_path, target)
    assert [] == [word for word in words if word not in line], line


@pytest.mark.parametrize(
    "words",
    [
        ("--debug", "worker", "app:group"),
        ("worker", "app:group", "--debug"),
        ("flow", "work", "app:group", "--debug"),
        ("flow", "ls", "app:group", "--debug"),
        ("check", "--debug"),
        ("up", "--debug"),
    ],
    ids=" ".join,
)
def test_debug_shows_the_traceback_of_code_that_cannot_be_imported(
    longwatch_bin: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Whichever process imports it: the user's own frames, and still the one line at the end."""
    write_app(tmp_path, "def connect():\n    raise OSError('token=hunter2 refused')\nconnect()\n")
    (tmp_path / "longwatch.toml").write_text('[worker.mail]\ntarget = "app:group"\n')
    done = run_longwatch(longwatch_bin, tmp_path, *words, env={"STORE": store_url(tmp_path)})
    *shown, last = done.stderr.splitlines()
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    assert "Traceback (most recent call last):" == shown[0]
    assert ["in <module>", "in connect"] == [
        line.rpartition(", ")[2]
        for line in shown
        if line.lstrip().startswith("File") and "app.py" in line
    ]
    assert "OSError: token=***" in last


def test_a_health_port_that_somebody_else_has_is_told(longwatch_bin: Path, tmp_path: Path) -> None:
    write_app(tmp_path, MARKS)
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = str(somebody.getsockname()[1])
        line = refusal(
            longwatch_bin,
            tmp_path,
            "app:group",
            "--health-port",
            port,
            "--health-host",
            "127.0.0.1",
        )
    assert port in line
    assert "in use" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--processes", "0"), "--processes"),
        (("--processes", "many"), "--processes"),
        (("--health-port", "70000"), "--health-port"),
        (("--log-level", "loud"), "--log-level"),
        (("--name", "watchdog"), "belongs to our own log"),
        (("--state-dir", "app.py/state"), "--state-dir"),
    ],
)
def test_a_wrong_option_is_told(
    longwatch_bin: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    write_app(tmp_path, MARKS)
    assert said in refusal(longwatch_bin, tmp_path, "app:group", *words)


# --- how it ends ---

SLOW_START = """
if sys.argv[1:2] == ["run"]:
    while not os.path.exists("begin"):
        time.sleep(0.01)

touchy = LoopGroup(
    [jobs], watchdog_threshold=60, readiness_threshold=1.5, max_processing_seconds=0.1,
    shutdown_timeout=20
)
"""


def test_sigterm_has_what_is_in_flight_finished_and_leaves_the_rest_to_others(
    longwatch_bin: Path, tmp_path: Path, runtime: Path
) -> None:
    with start_worker(
        longwatch_bin, tmp_path, "--processes", "2", env={"XDG_RUNTIME_DIR": str(runtime)}
    ) as run:
        run.joined_pids("worker-1", "worker-2")
        send(tmp_path, *({"id": name, "do": "wait", "until": "go"} for name in ("a", "b")))
        for name in ("a", "b"):
            run.notes.wait_for("begin", name)
        send(tmp_path, {"id": "c", "do": "done"})
        run.signal(signal.SIGTERM)
        assert eventually(
            lambda: [True, True] == [page.draining for page in read_beat_pages(runtime)]
        )
        (tmp_path / "go").touch()
        assert 0 == run.wait()
    assert ["a", "b"] == sorted(note.job for note in run.notes.all("begin"))
    assert ["a", "b"] == sorted(note.job for note in run.notes.all("end"))
    assert {"exit 0"} == {record["cause"] for record in run.events("shutdown_complete")}
    with opened_mailbox(store_url(tmp_path)) as mailbox:
        assert (1, 0, 0) == mailbox.stats()[:3]


def is_escalating(run: WorkerProcess) -> bool:
    if len(run.logged_events("signal_received")) > 1:
        return True
    run.signal(signal.SIGINT)
    return False


def test_a_second_signal_does_not_wait_for_what_is_in_flight(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path) as run:
        [pid] = run.joined_pids("worker")
        send(tmp_path, {"id": "a", "do": "silent"})
        run.notes.wait_for("begin", "a")
        run.signal(signal.SIGTERM)
        run.wait_for_event("program_stopping")
        assert eventually(lambda: is_escalating(run)), (
            "a moment after the first, a second signal counts"
        )
        assert 1 == run.wait()
    assert "signal 9" == run.wait_for_event("shutdown_complete", pid=pid)["cause"]
    with opened_mailbox(store_url(tmp_path)) as mailbox:
        assert eventually(lambda: (mailbox.backend.sweep(), mailbox.stats().ready == 1)[1])
        assert [0] == [each.crashes for each in mailbox.backend.peek(limit=2)], (
            "a drain is nobody's fault"
        )


def test_what_does_not_finish_in_its_time_is_left_behind_and_told_by_the_exit_code(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(
        tmp_path, "hasty = LoopGroup([jobs], shutdown_timeout=0.3, max_processing_seconds=0.1)\n"
    )
    with start_worker(longwatch_bin, tmp_path, target="app:hasty") as run:
        run.joined_pids("worker")
        send(tmp_path, {"id": "a", "do": "silent"})
        run.notes.wait_for("begin", "a")
        run.signal(signal.SIGTERM)
        assert 1 == run.wait()
    assert "exit 1" == run.wait_for_event("shutdown_complete")["cause"]
    assert [1] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]
    [stacks] = (run.state_dir / "crashes").iterdir()
    assert "in silent" in stacks.read_text()


def test_one_that_is_told_to_stop_before_it_has_begun_leaves_nothing_behind(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, SLOW_START)
    with start_worker(longwatch_bin, tmp_path, target="app:touchy") as run:
        run.wait_for_event("program_started")
        run.stop_cleanly()
    assert "signal 15" == run.wait_for_event("shutdown_complete")["cause"]


ONCE = """
class Once:
    running = False
    def run(self, **_): note("ran")
    def shutdown(self, *, timeout=30.0): return True
    def __enter__(self): return self
    def __exit__(self, *_): pass

once = LoopGroup([Once()])
"""


def test_when_all_loops_of_all_processes_are_done_so_is_the_parent(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, ONCE)
    with start_worker(longwatch_bin, tmp_path, "--processes", "3", target="app:once") as run:
        assert 0 == run.wait()
    assert 3 == len({pid for pid, _ in run.notes.raw()})
    assert [("exit 0", False)] * 3 == [
        (each["cause"], each["restart"]) for each in run.events("clean_exit")
    ]


def test_it_keeps_no_files_if_it_is_told_so(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_worker(longwatch_bin, tmp_path, "--state-dir", "off", "--name", "mine") as run:
        run.joined_pids("mine")
        send(tmp_path, {"id": "a", "do": "done"})
        run.notes.wait_for("end", "a")
        run.stop_cleanly()
    kept = {path.name.partition(".db")[0] for path in tmp_path.iterdir()}
    assert {"app.py", "jobs", "notes"} == kept - {"__pycache__"}


# --- health ---


def is_up(answer: HttpReply) -> bool:
    return answer.status == 200


def is_down(answer: HttpReply) -> bool:
    return answer.status == 503


def test_health_says_how_its_processes_are_from_the_start_to_the_end(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, SLOW_START)
    with start_worker(longwatch_bin, tmp_path, "--processes", "2", target="app:touchy") as run:
        pids = [run.pid_of("worker-1"), run.pid_of("worker-2")]
        starting = {"worker worker-1": "not_started", "worker worker-2": "not_started"}
        assert (
            503
            == run.wait_for_reply(
                "/health/ready?verbose", lambda answer: answer.reasons == starting
            ).status
        )
        assert (503, 200) == (run.get("/startupz").status, run.get("/health/live").status)
        (tmp_path / "begin").touch()
        run.wait_for_reply("/health/ready", is_up)
        assert (200, "OK") == (run.get("/startupz").status, run.get("/livez").body.strip())

        send(tmp_path, {"id": "quiet", "do": "wait_silently", "until": "speak"})
        stale = run.wait_for_reply("/health/ready?verbose", is_down)
        assert ["ok", "stale"] == sorted(stale.reasons.values())
        assert 200 == run.get("/health/live").status
        (tmp_path / "speak").touch()
        run.wait_for_reply("/health/ready", is_up)

        os.kill(pids[0], signal.SIGKILL)
        run.wait_for_event("unexpected_exit", pid=pids[0])
        run.wait_for_reply(
            "/health/ready?verbose",
            lambda answer: answer.reasons["worker worker-1"] in {"not_running", "not_started"},
        )
        run.wait_for_reply("/health/ready", is_up)

        send(tmp_path, {"id": "last", "do": "wait", "until": "go"})
        run.notes.wait_for("begin", "last")
        run.signal(signal.SIGTERM)
        run.wait_for_event("program_stopping")
        draining = run.wait_for_reply(
            "/health/ready?verbose", lambda answer: "draining" in answer.reasons.values()
        )
        assert (503, 200) == (draining.status, run.get("/health/live").status)
        (tmp_path / "go").touch()
        assert 0 == run.wait()
    with socket.create_server(("127.0.0.1", run.port)):
        pass  # the port is free again


def test_the_group_says_where_health_is_unless_the_command_line_does(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(
        tmp_path,
        "port = int(os.environ['OTHER'])\nown = LoopGroup([jobs], health_port=port, "
        "health_host='127.0.0.1')\n",
    )
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        other = str(somebody.getsockname()[1])
        with start_worker(longwatch_bin, tmp_path, target="app:own", env={"OTHER": other}) as run:
            run.joined_pids("worker")
            run.wait_for_reply("/health/ready", is_up)
            run.stop_cleanly()
        done = run_longwatch(
            longwatch_bin,
            tmp_path,
            "worker",
            "app:own",
            env={"OTHER": other, "STORE": store_url(tmp_path)},
        )
    assert 2 == done.returncode
    assert other in done.stderr


# --- metrics ---


def jobs_by_process(run: WorkerProcess) -> dict[int, int]:
    """How many jobs each process has done."""
    pids = [note.pid for note in run.notes.all("end")]
    return {pid: pids.count(pid) for pid in {*pids}}


def test_metrics_are_summed_over_the_processes_and_outlive_each_of_them(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    acked = ("longwatch_mailbox_acked_total", {"loop": "jobs"})
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        first, second = run.joined_pids("worker-1", "worker-2")
        send(tmp_path, *({"id": name, "do": "wait", "until": "go"} for name in ("a", "b")))
        for name in ("a", "b"):
            run.notes.wait_for("begin", name)
        assert eventually(lambda: run.metric("longwatch_leases_held", loop="jobs") == 2)
        stood = [
            run.metric(f"longwatch_mailbox_{what}", mailbox="jobs")
            for what in ("leased", "ready", "delayed", "dead")
        ]
        assert [2, 0, 0, 0] == stood
        (tmp_path / "go").touch()
        assert eventually(lambda: run.metric(acked[0], **acked[1]) == 2)
        assert {first: 1, second: 1} == jobs_by_process(run)
        os.kill(first, signal.SIGKILL)
        run.wait_for_event("worker_joined", program="worker-1", times=2)
        assert 2 == run.metric(acked[0], **acked[1])
        send(tmp_path, *({"id": f"c{number}", "do": "done"} for number in range(8)))
        assert eventually(lambda: run.metric(acked[0], **acked[1]) == 10)
        assert eventually(lambda: run.metric("longwatch_health_ready") == 1)
        found = parse_metrics(run.get("/metrics").body)
        run.stop_cleanly()
    plain = {
        (name, tuple(value for _, value in labels)): number
        for (name, labels), number in found.items()
    }
    assert (1, 2) == (
        plain["longwatch_health_ready", ()],
        plain["longwatch_loop_running", ("jobs",)],
    )
    assert [1, 1] == [plain["longwatch_worker_up", (f"worker-{number}",)] for number in (1, 2)]
    assert [2, 1] == [
        plain["longwatch_program_starts_total", (f"worker-{number}",)] for number in (1, 2)
    ]
    assert 1 == plain["longwatch_program_ends_total", ("worker-1", "unexpected_exit")]
    assert 10 == plain["longwatch_handle_duration_seconds_count", ("jobs",)]
    assert not [name for name, labels in plain if str(first) in labels or str(second) in labels], (
        "no pid is a label"
    )


# --- stores ---

TWO_STORES = """
class More(Jobs): pass
both = LoopGroup(
    [jobs, More(requests=open_mailbox(os.environ["OTHER"], "more"), name="more")],
    max_processing_seconds=0.1
)
"""


def leased(run: WorkerProcess, mailbox: str) -> float | None:
    return run.metric("longwatch_mailbox_leased", mailbox=mailbox)


def test_leases_in_several_stores_are_kept_and_released(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, TWO_STORES)
    other = store_url(tmp_path, "other")
    with start_worker(longwatch_bin, tmp_path, target="app:both", env={"OTHER": other}) as run:
        [first] = run.joined_pids("worker")
        send(tmp_path, {"id": "a", "do": "wait", "until": "go"})
        with opened_mailbox(other, "more") as more:
            more.send({"id": "b", "do": "wait", "until": "go"})
            for name in ("a", "b"):
                run.notes.wait_for("begin", name)
            assert eventually(lambda: [1, 1] == [leased(run, "jobs"), leased(run, "more")])
            os.kill(first, signal.SIGKILL)
            assert 2 == run.wait_for_event("worker_rows_reclaimed", pid=first)["rows"]
            (tmp_path / "go").touch()
            ends = [run.notes.wait_for("end", name) for name in ("a", "b")]
            assert eventually(lambda: is_drained(more))
        run.stop_cleanly()
    assert [(0, 1), (0, 1)] == [(end.failures, end.crashes) for end in ends]


IN_MEMORY = """
inside = open_mailbox("memory://", "inside")

def pass_on(context, job):
    inside.send({**job, "do": "wait"})

class Inner(Jobs):
    '''With a lease so short that it is renewed while a test looks on.'''
    def run(self, **settings):
        super().run(**{**settings, "visibility_timeout": 1.5})

outside = LoopGroup([jobs, Inner(requests=inside, name="inner")], max_processing_seconds=0.1)
"""


def test_what_is_in_memory_keeps_its_leases_by_itself(longwatch_bin: Path, tmp_path: Path) -> None:
    write_app(tmp_path, IN_MEMORY)
    with start_worker(longwatch_bin, tmp_path, "--log-level", "debug", target="app:outside") as run:
        run.joined_pids("worker")
        send(tmp_path, {"id": "a", "do": "pass_on", "until": "go"})
        run.notes.wait_for("begin", "a", times=2)
        renewed = [{"engine": "inner", "rows": 1}] * 5

        def is_kept() -> bool:
            return (
                renewed
                == [
                    {key: each[key] for key in ("engine", "rows")}
                    for each in run.child_events("worker", "leases_renewed")
                ][:5]
            )

        assert eventually(is_kept), "each is a third of its lease, so it would be over by now"
        assert run.metric("longwatch_mailbox_leased", mailbox="inside") is None, (
            "nobody else can look into it"
        )
        (tmp_path / "go").touch()
        run.notes.wait_for("end", "a", times=2)
        run.stop_cleanly()
    assert 2 == len(run.notes.all("begin"))
    assert {1} == {note.attempt for note in run.notes.all("end")}


# --- what is around its processes ---


def test_what_handlers_start_does_not_know_the_parent(longwatch_bin: Path, tmp_path: Path) -> None:
    """It would tell of leases, and of a health, that are not this worker's."""
    write_app(
        tmp_path,
        "def show(context, job):\n    subprocess.run('env > seen-env', shell=True, check=True)\n",
    )
    with start_worker(longwatch_bin, tmp_path) as run:
        [pid] = run.joined_pids("worker")
        assert b"LONGWATCH_PARENT=" in Path(f"/proc/{pid}/environ").read_bytes()
        send(tmp_path, {"id": "a", "do": "show"})
        run.notes.wait_for("end", "a")
        run.stop_cleanly()
    names = {line.partition("=")[0] for line in (tmp_path / "seen-env").read_text().splitlines()}
    assert "STORE" in names
    assert "LONGWATCH_PARENT" not in names


SECRET = "hunter2hunter2"
UNREACHABLE = """
class More(Jobs): pass
secret = LoopGroup(
    [jobs, More(requests=open_mailbox(os.environ["OTHER"], "more"), name="more")],
    watchdog_threshold=2.0, max_processing_seconds=0.1, shutdown_timeout=5.0,
)
"""


def files_below(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def test_the_password_of_a_store_is_nowhere_to_be_read(tmp_path: Path, runtime: Path) -> None:
    """Neither in what is logged of a store that cannot be reached, nor in the stacks of a
    process that stalls.
    """
    write_app(tmp_path, UNREACHABLE)
    with shared_server().database() as plain:
        url = migrate(plain.replace("postgres@", f"postgres:{SECRET}@"))
        other = f"postgresql://me:{SECRET}@127.0.0.1:1/nothing"
        env = {"STORE": url, "OTHER": other, "XDG_RUNTIME_DIR": str(runtime)}
        with (
            start_worker(cwd=tmp_path, target="app:secret", env=env, **FROM_SOURCE) as run,
            opened_mailbox(url) as mailbox,
        ):
            run.joined_pids("worker")
            below = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            words = [" ".join(command_line(process)) for process in below]
            assert eventually(lambda: run.child_events("worker", "claim_source_failed") != [])
            mailbox.send({"id": "bad", "do": "deadlock", "times": 1})
            run.wait_for_event("worker_stalled")
            run.notes.wait_for("end", "bad")
            run.signal(signal.SIGTERM)
            run.wait()
            written = {path: path.read_bytes() for path in files_below(tmp_path, runtime)}
    assert any("worker_process run app:secret" in word for word in words)
    assert not any(SECRET in word for word in words)
    assert {".stacks", ".log"} <= {path.suffix for path in written}
    assert [] == [path for path, data in written.items() if SECRET.encode() in data]
    assert SECRET.encode() not in run.out.text + run.err.text


# --- as PID 1 ---

NAMESPACES = {
    "own /proc": ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    "foreign /proc": ("unshare", "--pid", "--fork", "--kill-child"),
}


@pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=list(NAMESPACES))
def test_as_pid_1_it_works_replaces_and_ends_as_everywhere(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    requires.require_tool("unshare")
    with start_worker(longwatch_bin, tmp_path, "--processes", "2", within=namespace) as run:
        run.joined_pids("worker-1", "worker-2")
        [init] = psutil.Process(run.pid).children()
        send(tmp_path, {"id": "a", "do": "done"})
        run.notes.wait_for("end", "a")
        [victim, _] = [
            process for process in init.children(recursive=True) if "run" in command_line(process)
        ]
        victim.kill()
        run.wait_for_event("unexpected_exit")
        run.wait_for_event("program_started", start_number=2)
        send(tmp_path, {"id": "b", "do": "done"})
        run.notes.wait_for("end", "b")
        assert eventually(lambda: not any(map(is_zombie, init.children(recursive=True))))
        os.kill(init.pid, signal.SIGTERM)
        assert 0 == run.wait()
    assert {1} == {record["managerPid"] for record in run.logged_events()}


def test_its_log_is_json_and_that_of_its_processes_is_told_apart(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        run.joined_pids("worker-1", "worker-2")
        run.stop_cleanly()
    assert all(json.loads(line) for line in run.err.text.splitlines())
    records = [json.loads(line) for line in run.out.text.splitlines()]
    assert {"worker-1", "worker-2"} == {record["program"] for record in records}
    assert {"group_started", "group_stopped"} <= {record["event"] for record in records}


NOISY = """
import os, sys, warnings

print("printed")
warnings.warn("warned")
os.system("echo of a child")
sys.stderr.write("without a newline")
sys.stderr.flush()
from app import group
"""


def test_whatever_a_worker_process_prints_is_json_where_stdout_is_no_terminal(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    write_app(tmp_path)
    options = ("--processes", "2")
    with start_worker(longwatch_bin, tmp_path, *options, target="noisy:group") as run:
        run.joined_pids("worker-1", "worker-2")
        run.stop_cleanly()
    records = [json.loads(line) for line in (run.out.text + run.err.text).splitlines()]
    texts = [
        record["text"]
        for record in records
        if (record["event"], record.get("program")) == ("output_written", "worker-2")
    ]
    warned = [f"{tmp_path}/noisy.py:5: UserWarning: warned", '  warnings.warn("warned")']
    assert ["printed", *warned, "of a child", "without a newline"] == sorted(
        texts, key=["printed", *warned, "of a child", "without a newline"].index
    )
    assert "loop_started" in {record["event"] for record in records}
