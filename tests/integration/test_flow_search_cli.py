"""`longwatch flow ls` with conditions and `longwatch flow prune`, on both databases."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from flow_rig import ManualWorker, database_fixture, url_fixture  # noqa: F401 - fixtures
from longwatch.cli.main import main
from longwatch.flow import Flow, Graph, compute, input, retention  # noqa: A004 - the contract's word
from longwatch.flow.retention import Retention
from longwatch.store.database import Database


def double(age: float) -> float:
    return age * 2


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def people() -> Graph:
    nodes = [
        input("country", indexed=True),
        input("age"),
        compute("doubled", ["age"], double, max_attempts=1),
    ]
    return Graph("people", version="1", nodes=nodes)


class Shell:
    """Calls `longwatch flow` on a store."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys

    def output(self, *words: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["flow", *words, "--store", self._url])
        out, err = self._capsys.readouterr()
        self.err = err
        assert code == ended.value.code, err
        return out if code == 0 else err

    def json_output(self, *words: str) -> Any:
        return json.loads(self.output(*words, "--json"))

    def listed(self, *words: str) -> list[str]:
        return [each["execution"] for each in self.json_output("ls", *words)]


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    return ManualWorker(database, people())


@pytest.fixture
def shell(url: str, worker: ManualWorker, capsys: pytest.CaptureFixture[str]) -> Shell:
    worker.flow.sweep()
    return Shell(url, capsys)


def start(worker: ManualWorker, **values: Any) -> str:
    return worker.flow.start("people", values).id


def compute_all(worker: ManualWorker) -> None:
    """Compute what is ready; a negative age fails."""
    for leased in worker.claim():
        if worker.flow.execution(leased.item.id).values()["age"] < 0:
            assert worker.fail(leased)
        else:
            worker.run([leased])


class TestLs:
    def test_every_comparison_finds_its_executions(
        self, worker: ManualWorker, shell: Shell
    ) -> None:
        young, old, text = (
            start(worker, country="CH", age=5),
            start(worker, country="DE", age=40),
            start(worker, country="CA", age="40"),
        )
        found = {
            "country=CH": [young],
            "country==CH": [young],
            "country!=CH": [text, old],
            "country^=C": [text, young],
            "country>=CH": [old, young],
            "age=40": [old],
            'age="40"': [text],
            "age<40": [young],
            "age <= 40": [old, young],
            "age>5": [old],
            "country=": [],
            "country=%": [],
            "country='; DROP TABLE longwatch_values; --": [],
        }
        assert found == {where: shell.listed("--where", where) for where in found}
        assert [text] == shell.listed("--where", "age=40", "--text")
        assert [old] == shell.listed("--where", "age>=5", "--where", "country^=D")

    def test_states_sort_and_limit(self, worker: ManualWorker, shell: Shell) -> None:
        done, failed, idle = (
            start(worker, age=5),
            start(worker, age=-1),
            start(worker, country="CH"),
        )
        compute_all(worker)
        waiting = start(worker, age=7)
        assert [failed] == shell.listed("--state", "failed")
        assert [waiting, idle] == shell.listed("--state", "waiting", "--state", "idle")
        assert [waiting, done, failed] == shell.listed("--sort", "-age")
        assert [failed, done] == shell.listed("--sort", "age", "--limit", "2")
        assert "the first 2; more with --limit" in shell.output("ls", "--sort=age", "--limit=2")
        assert "the newest 2; more with --limit" in shell.output("ls", "--limit", "2")
        assert shell.output("ls", "--state", "archived", "--graph", "people").startswith(
            "no matching executions of graph 'people' in "
        )
        assert "no graph '' in the store; it has people" in shell.output(
            "ls", "--graph", "", code=2
        )
        assert "has no node 'agee'; did you mean age?" in shell.output(
            "ls", "--where", "agee>5", code=2
        )
        assert "no graph 'poeple' in the store; did you mean people?" in shell.output(
            "ls", "--graph", "poeple", code=2
        )

    def test_archived_executions_are_listed_when_asked_for(
        self, worker: ManualWorker, shell: Shell
    ) -> None:
        shown, hidden = start(worker, age=1), start(worker, age=2)
        compute_all(worker)
        worker.write("UPDATE longwatch_executions SET state = 5 WHERE id = :id", id=hidden)
        assert [shown] == shell.listed()
        assert [hidden, shown] == shell.listed("--archived")
        assert [hidden] == shell.listed("--state", "archived")

    def test_metadata_are_compared(self, worker: ManualWorker, shell: Shell) -> None:
        start(worker, age=1)
        found = start(worker, age=2)
        worker.write(
            "UPDATE longwatch_executions SET metadata = :json WHERE id = :id",
            json='{"team": "a", "size": 3}',
            id=found,
        )
        assert [found] == shell.listed("--metadata", "team=a", "--metadata", "size=3")
        assert [] == shell.listed("--metadata", "size=3", "--text")

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (("--where", "country"), "'country' compares nothing; write it as NODE=VALUE, such as"),
            (("--where", "=5"), "'=5' compares nothing; write it as NODE=VALUE"),
            (("--where", "a b=5"), "value() takes the name of a node, not 'a b'"),
            (("--where", "age=[1]"), "'age' can be compared with text, a number, a bool or None"),
            (("--metadata", "team"), "'team' compares nothing; write it as KEY=VALUE"),
            (("--state", "dome"), "executions have no state 'dome'; did you mean done?"),
            (("--sort", "a-b"), "sort must be 'created', 'updated' or the name of a node"),
        ],
    )
    def test_wrong_conditions_are_refused_with_what_to_write(
        self, worker: ManualWorker, shell: Shell, words: tuple[str, ...], line: str
    ) -> None:
        start(worker)
        assert shell.output("ls", *words, code=2).startswith(f"longwatch: {line}")


class TestPrune:
    def test_it_counts_then_removes_old_finished_executions(
        self, worker: ManualWorker, shell: Shell
    ) -> None:
        start(worker, age=1)
        failed, waiting = start(worker, age=-1), start(worker, country="CH")
        compute_all(worker)
        worker.write("UPDATE longwatch_executions SET settled_at = settled_at - 100000")
        young = start(worker, age=1)
        compute_all(worker)
        words = "prune", "--older-than", "1d"
        assert "2 executions would be removed\n" == shell.output(*words, "--dry-run")
        question = "Remove 2 executions, unchanged for 1 day, for good? There is no terminal"
        assert question in shell.output(*words, code=2)
        assert [young, waiting, failed] == shell.listed()[:3]
        assert {"executions": 1, "removed": True} == shell.json_output(
            *words, "--state", "done", "--graph", "people", "--yes"
        )
        assert "1 execution removed\n" == shell.output(*words, "--yes")
        assert [young, waiting] == shell.listed()
        assert "0 executions removed\n" == shell.output(*words)

    def test_an_interrupt_says_how_many_are_removed(
        self, worker: ManualWorker, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only a terminal shows the progress."""
        start(worker, age=1)
        start(worker, age=2)
        compute_all(worker)
        monkeypatch.setattr(retention, "FIRST_BATCH", 1)
        monkeypatch.setattr(Retention, "_let_others_write", interrupt)
        words = "prune", "--older-than", "0", "--yes"
        worker.database.jump.wall += 1.0
        assert (
            "longwatch: 1 execution removed so far; run it again to go on\nlongwatch: interrupted\n"
            == shell.output(*words, code=130)
        )
        monkeypatch.undo()
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert "1 execution removed\n" == shell.output(*words)
        assert "\r1 of 1 executions removed" in shell.err

    def test_it_asks_before_it_removes_those_of_several_graphs(
        self, worker: ManualWorker, shell: Shell
    ) -> None:
        Flow(worker.database, [Graph("other", version="1", nodes=[input("n")])]).start("other", n=1)
        words = "prune", "--older-than", "0"
        worker.database.jump.wall += 1.0
        question = "Remove 1 execution of all graphs, unchanged for 0 s, for good?"
        assert question in shell.output(*words, code=2)
        named = shell.output(*words, "--graph", "other", code=2)
        assert "Remove 1 execution, unchanged for 0 s, for good?" in named

    def test_an_empty_store_is_not_that_of_the_environment(
        self,
        worker: ManualWorker,
        url: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A script whose variable is not set removes nothing."""
        start(worker, age=1)
        compute_all(worker)
        worker.database.jump.wall += 1.0
        monkeypatch.setenv("LONGWATCH_STORE", url)
        with pytest.raises(SystemExit) as ended:
            main(["flow", "prune", "--older-than", "0", "--yes", "--store", ""])
        assert (2, 1) == (ended.value.code, worker.flow.count())
        assert "--store is empty; give the URL of a store" in capsys.readouterr().err

    def test_it_refuses_unfinished_states_and_unknown_graphs(
        self, worker: ManualWorker, shell: Shell
    ) -> None:
        start(worker, age=1)
        words = "prune", "--older-than", "0"
        assert "only finished executions are removed" in shell.output(
            *words, "--state", "idle", code=2
        )
        assert "there is no graph 'peple' in the store; did you mean people?" in shell.output(
            *words, "--graph", "peple", code=2
        )
        assert "--older-than is missing" in shell.output("prune", code=2)


def test_show_has_the_error_of_a_node_that_no_attempt_has(
    worker: ManualWorker, shell: Shell
) -> None:
    graph = Graph("doubling", version="1", nodes=[input("ages")])
    graph.map("doubled", over="ages", function=double)
    started = Flow(worker.database, [graph]).start("doubling", ages=5)
    *_, blank, last = shell.output("show", started.id).splitlines()
    assert not blank
    assert "doubled failed: map 'doubled' needs a list in 'ages', not a number" in last
    failed = start(worker, age=-1)
    compute_all(worker)
    assert "failed:" not in shell.output("show", failed)
