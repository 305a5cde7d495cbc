"""`longwatch flow …` of the installed wheel: what it tells, what it refuses, and how its workers
live and die.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import flow_app
from longwatch.errors import ComputationFailedError
from longwatch.flow import Execution, Flow
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.host.incarnation import Incarnation
from longwatch.workers.lease_renewer import open_claim_source
from polling import eventually
from postgres_server import shared_server
from run_process import TIMEOUT, clean_environment, start_process
from up_process import start_up, unused_port
from worker_process import WorkerProcess, migrate, most_down, parse_metrics

APP = Path(flow_app.__file__)
TARGET = "flow_app:flow"
SOURCE = (sys.executable, "-m", "longwatch")
"""The `longwatch` of this tree, which has the driver for PostgreSQL."""
NO_CODE = (
    "name the flow first, as in `longwatch flow {} scrape:flow …`, or set LONGWATCH_FLOW: its "
    "code is needed"
)


class FlowDirectory:
    """A directory with the application and its store, in which `longwatch flow` is called."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd
        self.url = f"sqlite:///{cwd / 'flow.db'}"
        self.flow = Flow(self.url, graphs=[flow_app.graph, flow_app.other])
        shutil.copy(APP, cwd)

    def __call__(self, *words: str | bytes, **env: str) -> subprocess.CompletedProcess[str]:
        return run_to_end([self.longwatch, "flow", *words], self.cwd, **env)

    def output(self, *words: str, **env: str) -> list[str]:
        done = self(*words, **env)
        assert (0, "") == (done.returncode, done.stderr), done.stderr
        return done.stdout.splitlines()

    def json_output(self, *words: str) -> Any:
        [line] = self.output(*words, "--json")
        return json.loads(line)

    def refusal_of(self, *words: str | bytes, code: int = 2, **env: str) -> str:
        """The one line of a refusal, without its `longwatch: `."""
        return refusal(self(*words, **env), code=code)

    def start(self, **job: Any) -> Execution:
        return self.flow.start("jobs", job={"id": "a", **job})

    def computed(self, job: dict[str, Any]) -> Execution:
        """An execution that workers have done all they can for."""
        started = self.flow.start("jobs", job=job)
        with self.flow.worker():
            assert eventually(
                lambda: (
                    not any(
                        each.state in {"not_set", "computing"} for each in started.computations()
                    )
                )
            )
        return started


def run_to_end(
    words: Sequence[str | bytes | Path], cwd: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        check=False,
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def refusal(done: subprocess.CompletedProcess[str], *, code: int) -> str:
    assert (code, "") == (done.returncode, done.stdout), done.stderr
    [said] = done.stderr.splitlines()
    assert said.startswith("longwatch: ")
    return said.removeprefix("longwatch: ")


@pytest.fixture
def place(
    longwatch_bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlowDirectory]:
    monkeypatch.chdir(tmp_path)  # where nodes that are computed in this process make their notes
    made = FlowDirectory(longwatch_bin, tmp_path)
    with closing(made.flow):
        yield made


# --- what cannot be ---

LOOKING = (
    ("ls",),
    ("show", "abc"),
    ("history", "abc"),
    ("stats",),
    ("prune", "--older-than", "1d"),
)
WITH_CODE = (
    ("explain", "abc"),
    ("graph",),
    ("graph", "--execution", "abc"),
    ("set", "abc", "job=1"),
    ("unset", "abc", "job"),
    ("retry", "abc", "pages"),
    ("abandon", "abc", "pages"),
    ("pause", "abc", "hourly"),
    ("resume", "abc", "hourly"),
    ("cancel", "abc"),
    ("archive", "abc"),
    ("unarchive", "abc"),
    ("sweep",),
    ("start", "jobs"),
    ("work",),
)


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_store_that_is_not_there_is_told_and_not_made(
    place: FlowDirectory, words: tuple[str, ...]
) -> None:
    told = place.refusal_of(*words)
    assert (
        "no store at sqlite:///longwatch.db; name the flow first, as module:name, or give --store"
        == told
    )
    assert ["flow_app.py"] == [each.name for each in place.cwd.iterdir()]
    told = place.refusal_of(*words, "--store", "sqlite:///nope.db")
    assert (
        "no store at sqlite:///nope.db; check the URL; the first `longwatch flow start` or "
        "flow.start(…) makes it" == told
    )


@pytest.mark.parametrize("words", [*LOOKING, *WITH_CODE[2:-2], WITH_CODE[0]], ids=" ".join)
def test_a_flow_in_which_nothing_was_started_is_told_and_its_store_not_made(
    place: FlowDirectory, words: tuple[str, ...]
) -> None:
    command, *rest = words
    told = place.refusal_of(command, TARGET, *rest)
    assert (
        "no store at sqlite:///flow.db; start an execution first, with `longwatch flow start` or "
        "flow.start(…)" == told
    )
    assert not (place.cwd / "flow.db").exists()


def test_a_server_without_tables_is_told_to_be_migrated_and_gets_none(place: FlowDirectory) -> None:
    with shared_server().database() as url:
        words = [*SOURCE, "flow", "ls", "--store", url]
        said = refusal(run_to_end(words, place.cwd), code=2)
        assert said.endswith(
            "holds no executions; run `longwatch db migrate --store URL`, which makes its tables"
        )
        words = [*SOURCE, "flow", "start", TARGET, "jobs"]
        said = refusal(run_to_end(words, place.cwd, STORE=url), code=2)
        assert "is at schema 0 of 12; run `longwatch db migrate --store URL`, or " in said


def test_a_database_that_is_not_ours_is_left_as_it_is(place: FlowDirectory) -> None:
    with closing(sqlite3.connect(place.cwd / "flow.db")) as other:
        other.execute("CREATE TABLE something_else (n INTEGER)")
    before = (place.cwd / "flow.db").read_bytes()
    assert place.refusal_of("ls", TARGET).startswith(
        "sqlite:///flow.db holds no executions; start an execution first"
    )
    assert before == (place.cwd / "flow.db").read_bytes()


@pytest.mark.parametrize("words", WITH_CODE, ids=" ".join)
def test_what_needs_the_code_says_how_to_name_it(
    place: FlowDirectory, words: tuple[str, ...]
) -> None:
    assert NO_CODE.format(words[0]) == place.refusal_of(*words)


UNUSABLE = {
    "nothing:flow": "the module 'nothing' of 'nothing:flow' was not found, neither in ",
    "flow_app:flwo": "the module flow_app has no 'flwo'; did you mean flow?",
    "flow_app:number": (
        "'flow_app:number' is of type int; it has to be a Flow, or a function that returns one"
    ),
    "flow_app:": "'flow_app:' is no import path; write it as module:name",
    "broken:flow": "'broken:flow' cannot be used: ZeroDivisionError: division by zero (",
    "exits:flow": "'exits:flow' cannot be used: SystemExit: 3",
}


@pytest.mark.parametrize("target", UNUSABLE)
def test_code_that_cannot_be_used_is_told_in_one_line(place: FlowDirectory, target: str) -> None:
    (place.cwd / "broken.py").write_text("1 / 0\n")
    (place.cwd / "exits.py").write_text("import sys\nsys.exit(3)\n")
    assert place.refusal_of("ls", target).startswith(UNUSABLE[target])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show",), "ID is missing; write: longwatch flow show module:flow ID"),
        (("explain", TARGET), "ID is missing; write: longwatch flow explain module:flow ID"),
        (
            ("retry", TARGET, "abc"),
            "NODE is missing; write: longwatch flow retry module:flow ID NODE",
        ),
        (
            ("set", TARGET, "abc"),
            "NODE=VALUE is missing; write: longwatch flow set module:flow ID NODE=VALUE",
        ),
        (("start", TARGET), "GRAPH is missing; write: longwatch flow start module:flow GRAPH"),
        (
            ("start", TARGET, "jobs", "job"),
            "'job' sets nothing; write it as NODE=VALUE, such as url=https://example.org",
        ),
        (
            ("start", TARGET, "jobz"),
            "graph 'jobz' was not given to this Flow: Flow(store, graphs=[...]); did you mean ",
        ),
        (
            ("unset", TARGET, "abc"),
            "NODE is missing; write: longwatch flow unset module:flow ID NODE",
        ),
        (("ls", TARGET, "abc"), "'abc' is too much; write: longwatch flow ls module:flow"),
        (
            ("abandon", TARGET, "abc", "pages", "more"),
            "'more' is too much; write: longwatch flow abandon module:flow ID NODE",
        ),
        (
            ("graph", TARGET, "jobs", "more"),
            "'more' is too much; write: longwatch flow graph module:flow NAME",
        ),
        (
            ("ls", TARGET, "--store", "sqlite:///x.db"),
            "a flow has its own store; name the flow or give --store, not both",
        ),
        (
            ("ls", "--store", "memory://"),
            "graphs are computed in a SQL store, which 'memory://' does not name; ",
        ),
        (
            ("ls", "--store", "redis://me:word@host/0"),
            "graphs are computed in a SQL store, which 'redis://***@host/0' does not",
        ),
        (
            ("ls", "--store", "sqlit:///x.db"),
            "graphs are computed in a SQL store, which 'sqlit:///x.db' does not name; did you",
        ),
        (("ls", "--limit", "0"), "--limit takes a whole number from 1 to 100000, got '0'"),
        (("work", TARGET, "--concurrency", "0"), "--concurrency takes a whole number from 1 to"),
        (("nothing",), "`longwatch flow` has no command 'nothing'"),
    ],
    ids=str,
)
def test_wrong_use_is_told_in_one_line(
    place: FlowDirectory, words: tuple[str, ...], said: str
) -> None:
    assert place.refusal_of(*words).startswith(said)


def test_words_that_are_no_text_are_wrong_use(place: FlowDirectory) -> None:
    assert "takes text in UTF-8, got" in place.refusal_of("show", b"\xff")


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("explain",),
        ("cancel",),
        ("archive",),
        ("unarchive",),
        ("graph", "--execution"),
        ("set",),
        ("unset",),
        ("retry",),
        ("abandon",),
    ],
    ids=" ".join,
)
def test_an_execution_that_is_not_there_is_told(
    place: FlowDirectory, words: tuple[str, ...]
) -> None:
    place.start()
    more = {"set": ["job=1"], "unset": ["job"], "retry": ["pages"], "abandon": ["pages"]}.get(
        words[0], []
    )
    command, *options = words
    told = place.refusal_of(command, TARGET, *options, "abc", *more)
    assert told.startswith("there is no execution 'abc' in sqlite:///flow.db")


def test_a_recurring_tick_is_paused_and_resumed_and_explained(place: FlowDirectory) -> None:
    with Flow(place.url, [flow_app.clock]) as flow:
        identity = flow.start("clock").id
    target = "flow_app:ticking"

    def explained() -> str:
        return "\n".join(place.output("explain", target, identity))

    assert "hourly: scheduled: it fires at " in explained()
    done = place.output("pause", target, identity, "hourly")
    assert [f"execution {identity} has paused hourly, at revision 0"] == done
    assert "hourly: paused; resume it to go on" in explained()
    assert any("paused" in line for line in place.output("graph", target, "--execution", identity))
    resumed = json.loads("".join(place.output("resume", target, identity, "hourly", "--json")))
    assert {"execution": identity, "revision": 0} == resumed
    assert "hourly: scheduled: it fires at " in explained()
    assert place.refusal_of("pause", target, identity, "later").startswith(
        "node 'later' of graph 'clock' is tick_once, and only a recurring tick can be paused"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("set", "pages=1"),
            "node 'pages' of graph 'jobs' is computed; set what it comes after: job",
        ),
        (("set", "jbo=1"), "graph 'jobs' has no node 'jbo'; did you mean job?"),
        (
            ("set", "job"),
            "'job' sets nothing; write it as NODE=VALUE, such as url=https://example.org",
        ),
        (("set", "=1"), "'=1' sets nothing; write it as NODE=VALUE"),
        (("set", "job=1", "job=2"), "more than one value for job; set each node once"),
        (("set", "job={1"), "the value of 'job' is not JSON: "),
        (("set", "job=2026-11-15"), "the value of 'job' is not JSON: "),
        (("set", "job=None"), "the value of 'job' is not JSON: "),
        (("set", "job="), "the value of 'job' is empty; "),
        (("retry", "job"), "node 'job' of graph 'jobs' is an input and not computed; set it"),
        (("retry", "report"), "node 'report' of "),
        (("abandon", "report"), "node 'report' of "),
        (("abandon", "nothing"), "graph 'jobs' has no node 'nothing'; "),
        (("pause", "pages"), "node 'pages' of graph 'jobs' is compute, and only a recurring tick"),
        (("resume", "job"), "node 'job' of graph 'jobs' is input, and only a recurring tick can"),
    ],
    ids=str,
)
def test_what_an_execution_cannot_do_is_told_and_changes_nothing(
    place: FlowDirectory, words: tuple[str, ...], said: str
) -> None:
    started = place.start()
    command, *rest = words
    assert place.refusal_of(command, TARGET, started.id, *rest).startswith(said)
    assert (1, {"job": {"id": "a"}}) == (started.revision, started.values())


@pytest.mark.parametrize("command", ["retry", "abandon"])
def test_a_refused_retry_names_the_command_that_explains(
    place: FlowDirectory, command: str
) -> None:
    refused = place.refusal_of(command, TARGET, place.start().id, "report")
    assert refused.rstrip().endswith("`longwatch flow explain`")


def test_a_cancelled_execution_changes_no_more(place: FlowDirectory) -> None:
    started = place.start()
    started.cancel()
    assert place.refusal_of("set", TARGET, started.id, "draft=1").startswith(
        f"execution {started.id} was cancelled and changes no more"
    )


def test_an_execution_of_a_graph_that_the_flow_does_not_have_can_be_shown_but_not_explained(
    place: FlowDirectory,
) -> None:
    started = place.flow.start("other", n=1)
    assert place.refusal_of("explain", TARGET, started.id).startswith(
        "graph 'other' was not given to this Flow"
    )
    assert place.refusal_of("graph", TARGET, "--execution", started.id).startswith(
        "graph 'other' was not given to this Flow"
    )
    assert "other" == place.json_output("show", TARGET, started.id)["graph"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("flow_app:two",), "this flow has several graphs; name one of jobs, other"),
        (("flow_app:none",), "this flow has no graphs; write Flow(store, graphs=[...])"),
        (
            ("flow_app:two", "othre"),
            (
                "graph 'othre' was not given to this Flow: Flow(store, graphs=[...]); did you "
                "mean other?"
            ),
        ),
        (
            ("flow_app:two", "other", "--version", "9"),
            "graph 'other' of version '9' was not given to this Flow, which has 2",
        ),
        (
            ("flow_app:two", "jobs", "--execution", "abc"),
            "an execution is of one graph; leave out its name and --version",
        ),
    ],
    ids=str,
)
def test_a_graph_that_there_is_not_is_told(
    place: FlowDirectory, words: tuple[str, ...], said: str
) -> None:
    assert said == place.refusal_of("graph", *words)


def test_a_store_that_is_away_is_worth_another_try(place: FlowDirectory) -> None:
    url = f"postgresql://me:word@127.0.0.1:{unused_port()}/flow"
    done = run_to_end([*SOURCE, "flow", "ls", "--store", url], place.cwd)
    assert "word" not in refusal(done, code=75)


# --- looking ---


def test_ls_lists_executions_from_a_flow_a_store_and_the_environment_alike(
    place: FlowDirectory,
) -> None:
    done = place.computed({"id": "a", "pages": 20})
    cancelled = place.start()
    cancelled.cancel()
    waiting = place.flow.start("other", n=1)
    told = place.json_output("ls", TARGET)
    assert [waiting.id, cancelled.id, done.id] == [each["execution"] for each in told]
    assert ["waiting", "cancelled", "done"] == [each["state"] for each in told]
    assert {
        "graph": "jobs",
        "version": "1",
        "revision": 3,
        "set": 3,
        "running": 0,
        "waiting": 0,
        "failed": 0,
    } == {
        key: told[-1][key]
        for key in ("graph", "version", "revision", "set", "running", "waiting", "failed")
    }
    same = [
        place.output("ls", "--store", "sqlite:///flow.db", "--json"),
        place.output("ls", "--json", LONGWATCH_STORE="sqlite:///flow.db"),
        place.output("ls", "--json", LONGWATCH_FLOW=TARGET, LONGWATCH_STORE="sqlite:///nothing.db"),
        place.output("ls", "--json", "--store", "sqlite:///flow.db", LONGWATCH_FLOW="nothing:flow"),
        place.output("ls", "flow_app:made", "--json"),
    ]
    assert [told] * 5 == [json.loads(line) for [line] in same]
    assert [waiting.id] == [
        each["execution"] for each in place.json_output("ls", TARGET, "--graph", "other")
    ]
    head, first, more = place.output("ls", TARGET, "--limit", "1")
    assert ["execution", "graph", "version", "state"] == head.split()[:4]
    assert [waiting.id, "other", "2", "waiting"] == first.split()[:4]
    assert "the newest 1; more with --limit" == more
    assert "no graph 'nothing' in the store; it has jobs, other" in place.refusal_of(
        "ls", TARGET, "--graph", "nothing"
    )


def test_show_tells_values_and_attempts_without_code(place: FlowDirectory) -> None:
    started = place.computed({"id": "a", "pages": 500})
    told = place.json_output("show", started.id, "--store", "sqlite:///flow.db")
    assert {"value": "x" * 500, "revision": 3} == told["values"]["report"]
    assert ["job", "pages", "report"] == list(told["values"])
    assert [("pages", 1, "success", None), ("report", 1, "success", None)] == [
        (each["node"], each["attempt"], each["state"], each["heartbeat_in"])
        for each in told["attempts"]
    ]
    assert {"job": 1} == told["attempts"][0]["computed_with"]
    text = place.output("show", started.id, "--store", "sqlite:///flow.db")
    assert ["execution", started.id] == text[0].split()
    assert any(
        line.startswith("report") and line.endswith("… (382 more characters)") for line in text
    )
    one = place.output("show", TARGET, started.id, "--limit", "1")
    assert "1 other attempt not shown; more with --limit" == one[-1]


def test_show_has_the_metadata_and_history_has_the_values_newest_first(
    place: FlowDirectory,
) -> None:
    started = place.computed({"id": "a", "pages": 12})
    assert {} == place.json_output("show", TARGET, started.id)["metadata"]
    started.set_metadata({"owner": "ada"})
    assert {"owner": "ada"} == place.json_output("show", TARGET, started.id)["metadata"]
    assert 'metadata   {"owner": "ada"}' in place.output("show", TARGET, started.id)
    found = place.json_output("history", started.id, "--store", "sqlite:///flow.db")
    assert [("report", "success", 3), ("pages", "success", 2), ("job", "set", 1)] == [
        (each["node"], each["state"], each["revision"]) for each in found
    ]
    one = place.json_output("history", TARGET, started.id, "--node", "pages", "--limit", "5")
    assert found[1:2] == one
    head, first, *_ = place.output("history", TARGET, started.id)
    assert head.split()[:4] == ["changed", "node", "state", "attempt"]
    assert ["report", "success", "1", "done", "3"] == first.partition(" ago ")[2].split()[:5]
    assert [f"no history of node 'none' of execution {started.id}"] == place.output(
        "history", TARGET, started.id, "--node", "none"
    )
    assert "ID is missing; write: longwatch flow history module:flow ID" == place.refusal_of(
        "history", TARGET
    )


def test_show_tells_the_last_line_of_an_error_and_escapes_it(place: FlowDirectory) -> None:
    started = place.start(error="first\n\x1b[31mlast")
    with place.flow.worker():
        assert eventually(lambda: len(started.computations()) > 1)
    with closing(sqlite3.connect(place.cwd / "flow.db")) as store, store:
        store.execute(
            "UPDATE longwatch_computations SET ready_at = ready_at + 10000 WHERE lease_state = 1"
        )
    *_, first, second = place.output("show", TARGET, started.id)
    assert (True, True) == (
        first.startswith("pages        1  failed "),
        first.endswith(r"  \x1b[31mlast"),
    )
    assert second.startswith("pages        2  due in 3 h ")
    text = "\n".join(place.output("show", TARGET, started.id, "--errors"))
    assert "\n\npages, attempt 1, raised: ValueError: first\n\\x1b[31mlast" in text
    [attempt, _] = place.json_output("show", TARGET, started.id, "--errors")["attempts"]
    assert "traceback" in attempt


def test_show_tells_how_long_a_running_attempt_may_be_silent(place: FlowDirectory) -> None:
    started = place.start(until="go")
    with place.flow.worker():
        assert eventually(lambda: started.computations()[0].state == "computing")
        [attempt] = place.json_output("show", TARGET, started.id)["attempts"]
        (place.cwd / "go").touch()
    assert ("computing", True) == (attempt["state"], 200 < attempt["heartbeat_in"] <= 240)
    assert 3500 < attempt["deadline_in"] <= 3600


def test_explain_prints_the_tree_and_tells_it_to_machines(place: FlowDirectory) -> None:
    started = place.start()
    assert str(started.explain()).splitlines() == place.output("explain", TARGET, started.id)
    told = place.json_output("explain", TARGET, started.id)
    assert [("job", "set"), ("draft", "unset"), ("pages", "waiting"), ("report", "blocked")] == [
        (each["node"], each["state"]) for each in told["nodes"]
    ]
    job_is_set = {"text": "job is set", "met": True, "error": None, "parts": []}
    assert job_is_set == told["nodes"][2]["gate"]["parts"][0]
    assert place.output("explain", started.id, LONGWATCH_FLOW=TARGET) == place.output(
        "explain", TARGET, started.id
    )


def test_stats_shows_how_far_executions_get_and_how_long_nodes_take(place: FlowDirectory) -> None:
    place.computed({"id": "a", "pages": 20})
    place.computed({"id": "b", "pages": 1})
    place.start()
    place.flow.start("other")
    with closing(sqlite3.connect(place.cwd / "flow.db")) as store, store:
        store.execute(
            "UPDATE longwatch_computations SET started_at = 1000, ended_at = 1000.25 "
            "WHERE state = 'success'"
        )
    assert [
        "graph jobs, 3 executions: 1 waiting, 2 done",
        "node    set  % set  failed  running  waiting  samples  mean    p50     p95     max",
        "job       3    100       0        0        0",
        "draft     0      0       0        0        0",
        "pages     2     66       0        0        1        2  0.25 s  0.25 s  0.25 s  0.25 s",
        "report    1     33       0        0        0        1  0.25 s  0.25 s  0.25 s  0.25 s",
    ] == place.output("stats", TARGET, "jobs")
    told = place.json_output("stats", "--store", "sqlite:///flow.db")
    assert ["jobs", "other"] == [each["graph"] for each in told]
    assert (1, 2, 0) == tuple(
        told[0]["executions"][state] for state in ("waiting", "done", "failed")
    )
    durations = {"count": 2, "mean": 0.25, "p50": 0.25, "p95": 0.25, "max": 0.25}
    pages = {"node": "pages", "set": 2, "failed": 0, "running": 0, "waiting": 1}
    assert pages | {"durations": durations} in told[0]["nodes"]
    with_code = place.json_output("stats", "flow_app:two")
    assert ["job", "pages", "report"] == [each["node"] for each in told[0]["nodes"]]
    assert ["job", "draft", "pages", "report"] == [each["node"] for each in with_code[0]["nodes"]]
    assert told[0]["executions"] == with_code[0]["executions"]
    assert "there is no graph 'job' in the store; did you mean jobs?" == place.refusal_of(
        "stats", "job", "--store", "sqlite:///flow.db"
    )


def test_graph_draws_a_graph_without_a_store_and_an_execution_with_its_states(
    place: FlowDirectory,
) -> None:
    drawn = place.output("graph", TARGET)
    assert "graph jobs 1" == drawn[0]
    assert "  report  compute  ← is long(pages) and (job or not draft)" == drawn[-1]
    assert not (place.cwd / "flow.db").exists()
    assert ["graph other 2", "  n       input", "  double  compute  ← n"] == place.output(
        "graph", "flow_app:two", "other"
    )
    started = place.start()
    assert "  pages   compute  waiting  ← job" in place.output(
        "graph", TARGET, "--execution", started.id
    )
    chart = place.output("graph", TARGET, "--mermaid", "--execution", started.id)
    assert "flowchart LR" in chart
    assert '    n3["pages<br/>compute · waiting"]:::waiting' in chart
    told = place.json_output("graph", TARGET)
    assert drawn == told["picture"].splitlines()
    assert {"node": "pages", "kind": "compute", "after": ["job"], "gate": "job"} == told["nodes"][2]


def test_what_a_module_prints_when_it_is_imported_is_no_part_of_the_answer(
    place: FlowDirectory,
) -> None:
    (place.cwd / "loud.py").write_text("print('loud')\nfrom flow_app import flow\n")
    done = place("graph", "loud:flow", "--json")
    assert ("loud\n", "jobs") == (done.stderr, json.loads(done.stdout)["graph"])


# --- changing ---


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (('job={"id": "b"}',), {"id": "b"}),
        (("job=https://example.org/?a=b",), "https://example.org/?a=b"),
        (('job="quoted"',), "quoted"),
        (("job=null",), None),
        (("job=-1.5",), -1.5),
        (("job=true",), True),
        (("job=12", "--text"), "12"),
        (("job=", "--text"), ""),
        (("job=2026-11-15", "--text"), "2026-11-15"),
    ],
    ids=str,
)
def test_set_takes_json_and_text_that_cannot_be_json(
    place: FlowDirectory, words: tuple[str, ...], value: Any
) -> None:
    started = place.start()
    assert {"execution": started.id, "revision": 2} == place.json_output(
        "set", TARGET, started.id, *words
    )
    assert {"job": value} == started.values()


def test_set_sets_all_in_one_revision(place: FlowDirectory) -> None:
    started = place.start()
    told = place.output("set", started.id, "job=1", "draft=2", LONGWATCH_FLOW=TARGET)
    assert [f"execution {started.id} has its inputs, at revision 2"] == told
    assert {"job": 1, "draft": 2} == started.values()


def test_unset_unsets_inputs_and_what_was_computed_from_them(place: FlowDirectory) -> None:
    started = place.computed({"id": "a", "pages": 3})
    started.set(draft=1)
    told = place.output("unset", TARGET, started.id, "job", "draft")
    assert [f"execution {started.id} has no job, draft, at revision 4"] == told
    assert {} == started.values()
    assert {"execution": started.id, "revision": 4} == place.json_output(
        "unset", TARGET, started.id, "job"
    )


def test_start_makes_the_store_and_starts_an_execution_with_its_inputs(
    place: FlowDirectory,
) -> None:
    told = place.json_output("start", TARGET, "jobs", 'job={"id": "a", "pages": 3}', "draft=x")
    assert {"graph": "jobs", "version": "1", "revision": 1} == {
        name: told[name] for name in ("graph", "version", "revision")
    }
    started = place.flow.execution(told["execution"])
    assert {"job": {"id": "a", "pages": 3}, "draft": "x"} == started.values()
    with place.flow.worker():
        assert 3 == started.get("pages", timeout=TIMEOUT)
    [line] = place.output("start", "jobs", "job=1", "--text", LONGWATCH_FLOW=TARGET)
    newest = place.flow.executions()[0]
    assert f"execution {newest.id} of jobs 1, at revision 1" == line
    assert {"job": "1"} == place.flow.execution(newest.id).values()


def test_start_with_a_key_starts_one_execution(place: FlowDirectory) -> None:
    first, second = (
        place.json_output("start", TARGET, "jobs", "--key", "today", f"draft={number}")
        for number in (1, 2)
    )
    assert first == second
    assert {"draft": 1} == place.flow.execution(first["execution"]).values()
    other = place.json_output("start", TARGET, "jobs", "--key", "tomorrow")
    assert first["execution"] != other["execution"]


def test_explain_shows_an_error_on_its_own_line_and_where_all_of_it_is(
    place: FlowDirectory,
) -> None:
    started = place.start(error="first\n--- stderr\nsecond")
    with place.flow.worker():
        assert eventually(lambda: len(started.computations()) > 1)
    told = place.output("explain", TARGET, started.id)
    line = next(each for each in told if each.startswith("pages: "))
    assert "pages: waiting for the time of its next try, attempt 2 of 3" == line
    assert "   last error: ValueError: first…" == told[told.index(line) + 1]
    assert f"errors in full: longwatch flow show {TARGET} {started.id} --errors" == told[-1]
    [pages] = [
        each
        for each in place.json_output("explain", TARGET, started.id)["nodes"]
        if each["node"] == "pages"
    ]
    assert "ValueError: first\n--- stderr\nsecond" == pages["error"]


def test_abandon_retry_and_cancel_act_on_an_execution(place: FlowDirectory) -> None:
    started = place.start()
    source = FlowClaimSource(place.flow.database, place.flow.registry)
    owner = source.register_owner(Incarnation.current())
    for _ in range(3):
        assert 1 == len(source.exchange([], owner=owner, limit=1, lease_seconds=60.0).claimed)
        assert {"execution": started.id, "revision": 1} == place.json_output(
            "abandon", TARGET, started.id, "pages"
        )
    assert "failed" == place.json_output("ls", TARGET)[0]["state"]
    assert [f"execution {started.id} tries pages again, at revision 1"] == place.output(
        "retry", TARGET, started.id, "pages"
    )
    assert "waiting" == place.json_output("ls", TARGET)[0]["state"]
    assert [f"execution {started.id} is cancelled, at revision 1"] == place.output(
        "cancel", TARGET, started.id
    )
    assert "cancelled" == place.json_output("ls", TARGET)[0]["state"]


def test_archive_and_unarchive_act_on_an_execution(place: FlowDirectory) -> None:
    started = place.start()
    assert [f"execution {started.id} is archived, at revision 1"] == place.output(
        "archive", TARGET, started.id
    )
    assert [] == place.json_output("ls", TARGET)
    assert "archived" == place.json_output("show", TARGET, started.id)["state"]
    assert "longwatch flow unarchive" in place.refusal_of("set", TARGET, started.id, "job=5")
    assert {"execution": started.id, "revision": 1} == place.json_output(
        "unarchive", TARGET, started.id
    )
    assert "waiting" == place.json_output("ls", TARGET)[0]["state"]


def test_sweep_brings_back_what_has_lapsed(place: FlowDirectory) -> None:
    started = place.start(until="never")
    source = FlowClaimSource(place.flow.database, place.flow.registry)
    source.exchange(
        [], owner=source.register_owner(Incarnation.current()), limit=1, lease_seconds=60.0
    )
    with closing(sqlite3.connect(place.cwd / "flow.db")) as store, store:
        store.execute("UPDATE longwatch_computations SET heartbeat_deadline = 0")
    assert {"moved": 1} == place.json_output("sweep", TARGET)
    assert ["abandoned", "not_set"] == [each.state for each in started.computations()]
    assert ["0 rows moved"] == place.output("sweep", TARGET)


# --- workers ---


@contextmanager
def flow_worker(
    place: FlowDirectory,
    *options: str,
    command: Sequence[str] = ("flow", "work"),
    target: str = TARGET,
    longwatch: Sequence[str] = (),
    **env: str,
) -> Iterator[WorkerProcess]:
    """`longwatch flow work` with a health port, killed at the end of the block if it still runs."""
    port = unused_port()
    health = ("--health-port", str(port), "--health-host", "127.0.0.1")
    words = [*(longwatch or [str(place.longwatch)]), *command, target, *health, *options]
    with start_process(words, place.cwd, env=env) as (process, out, err):
        yield WorkerProcess(process, out, err, port=port, longwatch=place.longwatch, cwd=place.cwd)


def states(execution: Execution) -> list[str]:
    return [each.state for each in execution.computations()]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "flow_app:group",
            (
                "'flow_app:group' is of type LoopGroup; it has to be a Flow, or a function that "
                "returns one; `"
            ),
        ),
        (
            "flow_app:number",
            "'flow_app:number' is of type int; it has to be a Flow, or a function that returns one",
        ),
        ("flow_app", "'flow_app' is no import path; write: longwatch flow work module:flow"),
        ("nothing:flow", "the module 'nothing' of 'nothing:flow' was not found"),
        ("flow_app:flwo", "the module flow_app has no 'flwo'; did you mean flow?"),
        ("broken:flow", "'broken:flow' cannot be imported: ZeroDivisionError: division by zero ("),
    ],
)
def test_work_refuses_what_is_no_flow(place: FlowDirectory, target: str, said: str) -> None:
    (place.cwd / "broken.py").write_text("1 / 0\n")
    assert place.refusal_of("work", target).startswith(said)
    assert not (place.cwd / "flow.db").exists()


def test_work_computes_with_as_many_at_a_time_as_it_was_told(place: FlowDirectory) -> None:
    waiting = [place.start(id=name, until="go") for name in "abc"]
    with flow_worker(place, "--concurrency", "2") as run:
        run.joined_pids("flow")
        assert eventually(lambda: len(run.notes.all("begin")) == 2)
        run.wait_for_reply("/health/ready", lambda answer: answer.status == 200)
        assert ["computing", "computing", "not_set"] == [
            each.computations()[0].state for each in waiting
        ]
        (place.cwd / "go").touch()
        assert [1, 1, 1] == [each.get("pages", timeout=TIMEOUT) for each in waiting]
        run.stop_cleanly()
    assert ["abc"] == ["".join(sorted(note.job for note in run.notes.all("end")))]


def kill_and_expect_takeover(run: WorkerProcess, started: Execution) -> None:
    run.joined_pids("flow-1", "flow-2")
    first = run.notes.wait_for("begin", "a")
    os.kill(first.pid, signal.SIGKILL)
    second = run.notes.wait_for("begin", "a", times=2)  # long before its heartbeat is missed
    assert (True, 2) == (second.pid != first.pid, second.attempt)
    (run.cwd / "go").touch()
    assert 1 == started.get("pages", timeout=TIMEOUT)
    run.stop_cleanly()
    assert [("abandoned", "crash"), ("success", "done")] == [
        (each.state, each.end_cause) for each in started.computations()
    ]


TWO = ("--processes", "2", "--concurrency", "1")


def test_what_a_killed_process_was_at_runs_elsewhere_at_once(place: FlowDirectory) -> None:
    started = place.start(until="go")
    with flow_worker(place, *TWO) as run:
        kill_and_expect_takeover(run, started)


def test_postgresql_is_worked_on_and_looked_at_alike(place: FlowDirectory) -> None:
    with (
        shared_server().database() as url,
        closing(Flow(migrate(url), graphs=[flow_app.graph])) as flow,
    ):
        started = flow.start("jobs", job={"id": "a", "until": "go"})
        with flow_worker(place, *TWO, longwatch=SOURCE, STORE=url) as run:
            kill_and_expect_takeover(run, started)
        listed = run_to_end([*SOURCE, "flow", "ls", "--store", url, "--json"], place.cwd)
        shown = run_to_end(
            [*SOURCE, "flow", "show", TARGET, started.id, "--json"], place.cwd, STORE=url
        )
    assert [(started.id, "done")] == [
        (each["execution"], each["state"]) for each in json.loads(listed.stdout)
    ]
    assert ["abandoned", "success"] == [
        each["state"] for each in json.loads(shown.stdout)["attempts"]
    ]


def test_a_parent_takes_no_turn_in_sweeps_that_need_graphs(place: FlowDirectory) -> None:
    place.start()
    stores: dict[str, Any] = {}
    source = open_claim_source({"kind": "flow", "url": place.url, "name": "jobs"}, stores)
    with closing(stores[place.url]):
        assert 0 == source.sweep()
    assert [] == place.flow.sweeps()


def test_what_the_only_process_was_at_is_released_by_its_parent(place: FlowDirectory) -> None:
    started = place.start(until="go")
    with flow_worker(place) as run:
        [first] = run.joined_pids("flow")
        run.notes.wait_for("begin", "a")
        os.kill(first, signal.SIGKILL)
        assert 1 == run.wait_for_event("worker_rows_reclaimed", pid=first)["rows"]
        (place.cwd / "go").touch()
        assert 1 == started.get("pages", timeout=TIMEOUT)
        run.stop_cleanly()


def test_heartbeats_come_from_the_parent(place: FlowDirectory) -> None:
    started = place.start(until="go")
    with flow_worker(place, "--log-level", "debug") as run:
        run.notes.wait_for("begin", "a")
        begun = started.computations()[0].last_heartbeat_at or 0.0
        run.wait_for_event("leases_renewed", managerPid=run.pid, engine="flow", rows=1)
        assert eventually(lambda: (started.computations()[0].last_heartbeat_at or 0.0) > begun)
        (place.cwd / "go").touch()
        assert 1 == started.get("pages", timeout=TIMEOUT)
        run.stop_cleanly()
    assert (["success"], []) == (states(started), run.child_events("flow", "leases_renewed"))


def test_nodes_that_kill_their_process_are_given_up_and_the_worker_goes_on(
    place: FlowDirectory,
) -> None:
    started = [place.start(id=str(number), die=number in {10, 30}) for number in range(50)]
    with flow_worker(place, "--concurrency", "2") as run:
        done = [each for number, each in enumerate(started) if number not in {10, 30}]
        assert {1} == {each.get("pages", timeout=4 * TIMEOUT) for each in done}
        for number in (10, 30):
            with pytest.raises(ComputationFailedError, match="poison"):
                started[number].get("pages", timeout=4 * TIMEOUT)
        assert 1 == place.start(id="after").get("pages", timeout=TIMEOUT)
        run.stop_cleanly()
    assert [] == run.events("circuit_breaker_tripped")
    abandoned = [event["execution"] for event in run.events("attempt_abandoned")]
    assert {started[number].id for number in (10, 30)} <= set(abandoned)


def test_sigterm_under_load_settles_everything_in_flight_and_exits_with_0(
    place: FlowDirectory,
) -> None:
    started = [place.start(id=str(number), pages=20) for number in range(150)]
    with flow_worker(place, "--processes", "2") as run:
        run.joined_pids("flow-1", "flow-2")
        assert eventually(lambda: len(run.notes.all("end")) > 10)
        run.stop_cleanly()
    found = [attempt for each in started for attempt in each.computations()]
    assert {("success", 1), ("not_set", 1)} >= {(each.state, each.attempt) for each in found}
    ended_notes = [note.job for note in run.notes.all("end")]
    assert (
        len(ended_notes)
        == len(set(ended_notes))
        == sum(each.state == "success" for each in found if each.node == "pages")
    )
    assert [] == run.events("worker_rows_reclaimed")


def test_sigterm_lets_what_runs_finish(place: FlowDirectory) -> None:
    started = place.start(until="go")
    with flow_worker(place) as run:
        run.notes.wait_for("begin", "a")
        run.signal(signal.SIGTERM)
        run.wait_for_event("program_stopping", program="flow")
        (place.cwd / "go").touch()
        assert 0 == run.wait()
    assert ["success"] == states(started)


def test_sighup_restarts_the_processes_one_after_another_and_nothing_is_tried_twice(
    place: FlowDirectory,
) -> None:
    names = ["flow-1", "flow-2"]
    with flow_worker(place, "--processes", "2") as run:
        run.joined_pids(*names)
        run.signal(signal.SIGHUP)
        started: list[Execution] = []
        for name in names:
            started += [place.start() for _ in range(50)]
            run.wait_for_event("program_stopping", program=name)
            started += [place.start() for _ in range(50)]
            run.wait_for_event("program_ready", program=name, times=2)
        assert {1} == {each.get("pages", timeout=TIMEOUT) for each in started}
        run.stop_cleanly()
    assert [2, 2] == [len(run.matching_events("program_started", program=name)) for name in names]
    assert 1 == most_down(run.events())
    assert [["success"]] * 200 == [states(each) for each in started]


@pytest.mark.parametrize("target", [TARGET, "flow_app:made", "flow_app:group", "flow_app:both"])
def test_worker_runs_a_flow_and_groups_that_have_one(place: FlowDirectory, target: str) -> None:
    with flow_worker(place, command=("worker",), target=target) as run:
        run.joined_pids("worker")
        assert 1 == place.start().get("pages", timeout=TIMEOUT)
        run.stop_cleanly()


def test_flows_and_mailboxes_of_one_process_are_kept_and_measured_side_by_side(
    place: FlowDirectory,
) -> None:
    started = place.start(until="go")
    with flow_worker(place, command=("worker",), target="flow_app:group") as run:
        [pid] = run.joined_pids("worker")
        run.notes.wait_for("begin", "a")
        run.wait_for_reply("/health/ready", lambda answer: answer.status == 200)
        assert 0 == run.metric("longwatch_mailbox_ready", mailbox="letters")
        assert eventually(lambda: run.metric("longwatch_leases_held", loop="nodes") == 1)
        assert [] == [
            line for line in run.get("/metrics").body.splitlines() if 'mailbox="jobs"' in line
        ]
        os.kill(pid, signal.SIGKILL)
        assert 1 == run.wait_for_event("worker_rows_reclaimed", pid=pid)["rows"]
        (place.cwd / "go").touch()
        assert 1 == started.get("pages", timeout=TIMEOUT)
        run.stop_cleanly()


def test_metrics_of_two_processes_are_one_backlog_and_counters_that_outlive_each(
    place: FlowDirectory,
) -> None:
    def attempts(run: WorkerProcess, **labels: str) -> float | None:
        return run.metric("longwatch_flow_attempts_total", graph="jobs", node="pages", **labels)

    def backlog(run: WorkerProcess) -> list[float | None]:
        names = ("ready", "running", "delayed")
        return [run.metric(f"longwatch_flow_{name}", graph="jobs") for name in names]

    with flow_worker(place, "--processes", "2", "--concurrency", "1") as run:
        run.joined_pids("flow-1", "flow-2")
        first = [place.start(id=name, until="go") for name in ("a", "b", "c")]
        assert eventually(lambda: [1, 2, 0] == backlog(run)), "what both see counts once"
        assert eventually(
            lambda: (run.metric("longwatch_flow_oldest_ready_seconds", graph="jobs") or 0) > 0
        )
        (place.cwd / "go").touch()
        assert [1, 1, 1] == [each.get("pages", timeout=TIMEOUT) for each in first]
        assert eventually(lambda: attempts(run, state="success", cause="done") == 3)
        killed = place.start(id="d", until="go-on")
        os.kill(run.notes.wait_for("begin", "d").pid, signal.SIGKILL)
        assert eventually(lambda: attempts(run, state="abandoned", cause="crash") == 1)
        assert 3 == attempts(run, state="success", cause="done")
        (place.cwd / "go-on").touch()
        assert 1 == killed.get("pages", timeout=TIMEOUT)
        assert eventually(lambda: attempts(run, state="success", cause="done") == 4)
        assert eventually(lambda: [0, 0, 0] == backlog(run))
        found = parse_metrics(run.get("/metrics").body)
        run.stop_cleanly()
    names = {name for name, _ in found}
    assert [] == [
        name for name in names if "mailbox" in name or name.startswith("longwatch_handle")
    ]
    duration = ("longwatch_flow_attempt_seconds_count", (("graph", "jobs"), ("node", "pages")))
    assert 4 == found[duration]
    assert {"longwatch_flow_sweep_seconds_count", "longwatch_flow_sweep_rows_total"} <= names


def test_up_keeps_a_worker_whose_target_is_a_flow(place: FlowDirectory) -> None:
    with start_up(
        place.longwatch, place.cwd, {}, worker={"nodes": {"target": TARGET, "processes": 2}}
    ) as run:
        run.wait_for_status("nodes-1", ready=True)
        assert 1 == place.start().get("pages", timeout=TIMEOUT)
        run.stop_cleanly()
