"""The pages of stores over HTTP: what they show, their actions, and stores that do not answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from flow_stores import opened_database
from longwatch.core.events.page import PageActionTaken
from longwatch.mailbox.url import open_mailbox, open_store
from longwatch.page.readers import mailboxes as readers
from longwatch.page.stores import StoreCatalog
from longwatch.page.views import mailboxes as views
from longwatch.store.database import Database
from loopback import free_port
from page_process import served_page
from page_rig import RunningPage, forms, running_page
from page_stores import GraphWorker, RunnerQueue, add_source, dead_letter, letters_graph
from polling import eventually

MARKUP = "<script>alert(1)</script>"
CONTROLS = "\x1b[31m\x07\x85\u202e"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


@pytest.fixture(name="url")
def url_fixture(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture(name="database")
def database_fixture(url: str) -> Iterator[Database]:
    with opened_database(url) as database:
        database.write(lambda _: None)
        yield database


@pytest.fixture(name="page")
def page_fixture(url: str, database: Database) -> Iterator[RunningPage]:
    assert database.url == url
    with running_page(url) as page:
        yield page


class TestMailboxes:
    def test_a_dead_letter_is_looked_at_and_replayed(
        self, page: RunningPage, database: Database
    ) -> None:
        mailbox = open_mailbox(database, "a/b")
        body = f'{{"text": "{MARKUP}", "token": "abcdef"}}'.encode()
        error = f"{MARKUP}{CONTROLS}"
        sent = dead_letter(mailbox.backend, body, error=error, traceback=f"File\n{error}")
        [key] = page.keys
        assert f"/mailboxes/{key}/a%2Fb" in page.get("/mailboxes")
        listed = page.get(f"/mailboxes/{key}/a%2Fb")
        assert f"/mailboxes/{key}/a%2Fb/dead/{sent}" in listed
        shown = page.get(f"/mailboxes/{key}/a%2Fb/dead/{sent}")
        assert 3 == shown.count(ESCAPED)
        for html in (listed, shown):
            assert MARKUP not in html
            assert "abcdef" not in html
            assert not re.search(f"[{CONTROLS[0]}{CONTROLS[-3:]}]", html)
        path = f"/mailboxes/{key}/a%2Fb/replay"
        asking = page.post(path, shown, id=sent)
        assert f"Replay dead letter {sent} of mailbox a/b?" in asking
        assert 1 == mailbox.stats().dead
        after = page.confirm(path, shown, id=sent)
        assert "1 dead letter of mailbox a/b replayed." in after
        assert (1, 0) == mailbox.stats()[0:4:3]
        [taken] = [each for each in page.served.events if isinstance(each, PageActionTaken)]
        assert ("replay_dead_letters", True) == (taken.action, taken.ok)
        assert sent in taken.subject

    def test_all_dead_letters_are_dropped(self, page: RunningPage, database: Database) -> None:
        mailbox = open_mailbox(database, "jobs")
        for _ in range(3):
            dead_letter(mailbox.backend, b"1")
        [key] = page.keys
        listed = page.get(f"/mailboxes/{key}/jobs")
        after = page.confirm(f"/mailboxes/{key}/jobs/drop", listed)
        assert "3 dead letters of mailbox jobs dropped." in after
        assert "There are no dead letters." in after
        assert 0 == mailbox.stats().dead

    def test_what_is_gone_is_said(self, page: RunningPage, database: Database) -> None:
        mailbox = open_mailbox(database, "jobs")
        sent = dead_letter(mailbox.backend, b"1")
        [key] = page.keys
        listed = page.get(f"/mailboxes/{key}/jobs")
        mailbox.dead_letters.drop(sent)
        after = page.confirm(f"/mailboxes/{key}/jobs/drop", listed, id=sent)
        assert f"Dead letter {sent} is not there any more." in after
        assert "may have been replayed" in page.get(f"/mailboxes/{key}/jobs/dead/{sent}")
        assert "there is no mailbox nothing" in page.get(f"/mailboxes/{key}/nothing")
        assert "there is no store" in page.get("/mailboxes/abc/jobs")

    def test_a_list_that_is_not_complete_says_so(
        self, page: RunningPage, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b", "c"):
            open_mailbox(database, name).send(1)
        assert "by name" not in page.get("/mailboxes")
        for module in (readers, views):
            monkeypatch.setattr(module, "MAX_MAILBOXES", 2)
        assert "of each store the first 2 by name" in page.get("/mailboxes")

    def test_a_store_that_is_gone_is_named_and_the_others_are_shown(
        self, url: str, database: Database
    ) -> None:
        open_mailbox(database, "jobs").send(1)
        gone = f"postgresql://user:secret@127.0.0.1:{free_port()}/gone"
        with running_page(url, gone) as page:
            for path in ("/mailboxes", "/flows", "/runner"):
                html = page.get(path)
                assert "A store does not answer." in html
                assert "127.0.0.1" in html
                assert "secret" not in html
            assert f"/mailboxes/{page.keys[0]}/jobs" in page.get("/mailboxes")
            assert "does not answer" in page.get(f"/mailboxes/{page.keys[1]}/jobs")

    def test_a_store_that_cannot_be_opened_does_not_hide_the_others(
        self, url: str, database: Database, tmp_path: Path
    ) -> None:
        open_mailbox(database, "jobs").send(1)
        (tmp_path / "text.db").write_text("this is no database " * 100)
        faulty = ("mysql://host/jobs", f"sqlite:///{tmp_path}/text.db", "sqlite:///no%00.db")
        with running_page(url, *faulty) as page:
            for path in ("/", "/mailboxes", "/flows", "/runner"):
                answer = page.served.get(path)
                assert 200 == answer.status
                for each in faulty:
                    assert each in answer.body
            assert f"/mailboxes/{page.keys[0]}/jobs" in page.get("/mailboxes")

    def test_a_file_that_was_removed_is_named_until_it_is_back(
        self, url: str, tmp_path: Path
    ) -> None:
        with running_page(url) as page:
            assert "The stores have no mailboxes." in page.get("/mailboxes")
            with open_store(url) as store:
                open_mailbox(store, "jobs").send(1)
            assert f"/mailboxes/{page.keys[0]}/jobs" in page.get("/mailboxes")
            (tmp_path / "store.db").rename(tmp_path / "renamed.db")
            mailbox = f"/mailboxes/{page.keys[0]}/jobs"
            for path in ("/mailboxes", "/flows", "/runner", mailbox):
                assert "store.db was removed or renamed" in page.get(path)
            assert eventually(lambda: "store.db was removed or renamed" in page.get("/"))
            assert not (tmp_path / "store.db").exists()
            (tmp_path / "renamed.db").rename(tmp_path / "store.db")
            assert f"/mailboxes/{page.keys[0]}/jobs" in page.get("/mailboxes")
            assert eventually(lambda: "removed or renamed" not in page.get("/"))

    @pytest.mark.parametrize("path", ["/mailboxes", "/flows", "/runner"])
    def test_a_store_that_does_not_answer_is_not_called_empty(self, path: str) -> None:
        with running_page(f"postgresql://127.0.0.1:{free_port()}/gone") as page:
            html = page.get(path)
        assert "A store does not answer." in html
        assert not re.search("no mailboxes|No store (that )?is known", html)


def test_a_store_of_mailboxes_alone_has_no_executions_and_runs() -> None:
    with running_page(f"redis://127.0.0.1:{free_port()}/0") as page:
        [key] = page.keys
        for path in (f"/flows/{key}/some", f"/runner/{key}/runs/some"):
            assert "has mailboxes alone" in page.get(path)
        assert "No store that is known has executions." in page.get("/flows")


class TestFlows:
    def test_executions_are_listed_found_and_paged(
        self, page: RunningPage, database: Database
    ) -> None:
        worker = GraphWorker(database, letters_graph())
        ids = [worker.flow.start("letters <b>").id for _ in range(101)]
        [key] = page.keys
        html = page.get("/flows")
        assert "letters &lt;b&gt;" in html
        assert "<b>" not in html
        assert ids[-1] in html
        assert ids[0] not in html
        [older] = [line for line in html.splitlines() if "Older" in line]
        following = page.get(unescape(older.split('href="')[1].split('"')[0]))
        assert ids[0] in following
        assert ids[-1] not in following
        assert ids[0] in page.get(f"/flows?store={key}&text={ids[0]}")
        assert "executions have no state" in page.get("/flows?state=broken")

    def test_an_execution_is_drawn_explained_and_retried(
        self, page: RunningPage, database: Database
    ) -> None:
        worker = GraphWorker(database, letters_graph())
        execution = worker.failed_execution(f"no {MARKUP}", topics=[MARKUP])
        [key] = page.keys
        path = f"/flows/{key}/{execution.id}"
        html = page.get(path)
        assert '<svg class="graph"' in html
        assert "waiting for node `pages`, which was given up" in html
        assert f"no {ESCAPED}" in html
        assert MARKUP not in html
        assert f"flow retry MODULE:FLOW {execution.id} each" in html
        after = page.confirm(f"{path}/retry", html)
        assert "pages will be computed again" in after
        assert 2 == worker.compute()
        assert "http://x" == execution.get("titles", wait=False)
        assert "No attempt is open." in page.get(path)
        [node] = [each for each in worker.flow.executions() if each.id == execution.id]
        assert 1 == node.failed

    def test_a_node_of_which_the_code_is_needed_names_the_command(
        self, page: RunningPage, database: Database
    ) -> None:
        worker = GraphWorker(database, letters_graph())
        execution = worker.failed_execution("no", topics=[1])
        [key] = page.keys
        path = f"/flows/{key}/{execution.id}"
        after = page.confirm(f"{path}/retry", page.get(path), node="each")
        assert f"run `longwatch flow retry MODULE:FLOW {execution.id} each`" in unescape(after)
        assert "there is no execution gone" in page.get(f"/flows/{key}/gone")


class TestRunner:
    def test_a_run_is_shown_with_the_end_of_its_output(
        self, page: RunningPage, database: Database, tmp_path: Path
    ) -> None:
        add_source(database, "alpha")
        queue = RunnerQueue(database, "alpha")
        queue.put(text=MARKUP)
        workspace = tmp_path / "workspace"
        workspace.mkdir()
        lines = "".join(f"line {number}\n" for number in range(100_000))
        (workspace / "stdout.log").write_text(f"{lines}\x1b[31m{MARKUP} token=abc\x1b[0m\n")
        (workspace / "stderr.log").symlink_to("/etc/passwd")
        run_id, row = queue.begin(workspace)
        [key] = page.keys
        assert run_id in page.get("/runner").split("Running now")[1].split("Runs <span")[0]
        queue.fail(run_id, row, error=MARKUP)
        assert run_id in page.get("/runner?status=failure")
        assert run_id not in page.get("/runner?status=success").split("Running now")[1]
        html = page.get(f"/runner/{key}/runs/{run_id}")
        assert f"{ESCAPED} token=***" in html
        for text in (MARKUP, "\x1b", "root:", "line 99000"):
            assert text not in html
        assert "line 99999" in html
        after = page.confirm(f"/runner/{key}/runs/{run_id}/retry", html)
        assert "is queued again." in after
        assert f"/runner/{key}/runs/{run_id}/retry" not in forms(after)

    def test_a_run_without_its_workspace_shows_what_the_store_has(
        self, page: RunningPage, database: Database, tmp_path: Path
    ) -> None:
        add_source(database, "alpha")
        queue = RunnerQueue(database, "alpha")
        queue.put(n=1)
        run_id, row = queue.begin(tmp_path / "gone")
        queue.fail(run_id, row, error="no", output="the end of it")
        [key] = page.keys
        html = page.get(f"/runner/{key}/runs/{run_id}")
        assert "the end of it" in html
        assert "not on this machine" in html

    def test_a_run_that_has_ended_is_not_cancelled(
        self, page: RunningPage, database: Database, tmp_path: Path
    ) -> None:
        add_source(database, "alpha")
        queue = RunnerQueue(database, "alpha")
        queue.put(n=1)
        run_id, row = queue.begin(tmp_path)
        [key] = page.keys
        path = f"/runner/{key}/runs/{run_id}"
        html = page.get(path)
        queue.fail(run_id, row, error="no")
        assert "has ended, so there is nothing to cancel" in page.confirm(f"{path}/cancel", html)


def test_the_overview_names_the_troubles_of_stores(page: RunningPage, database: Database) -> None:
    dead_letter(open_mailbox(database, "jobs").backend, b"1")
    add_source(database, "alpha", state="waiting", error=f"refused {MARKUP}")
    hold = "UPDATE longwatch_runner_sources SET lease_state = 2, lease_until = :lease_now + 600"
    database.write(lambda tx: tx.execute(hold))
    [key] = page.keys
    html = page.get("/")
    assert f"/mailboxes/{key}/jobs" in html
    for text in ("1 dead letter", "source not connected", f"refused {ESCAPED}"):
        assert text in html


@pytest.mark.parametrize("path", ["/mailboxes", "/flows", "/runner"])
def test_a_page_without_stores_says_so(path: str) -> None:
    with running_page() as page:
        html = page.get(path)
    assert "No store" in html
    assert "<h1>" in html


def test_an_open_work_breaker_is_shown_until_it_closes(
    tmp_path: Path, url: str, database: Database
) -> None:
    log = tmp_path / "logs" / "watchdog.log"
    log.parent.mkdir()
    opened = {
        "ts": "2026-01-02T03:04:05.000Z",
        "level": "error",
        "event": "work_breaker_opened",
        "program": "runner",
        "failures": 5,
        "cooldown": 300.0,
    }
    log.write_text(json.dumps(opened) + "\n")
    add_source(database, "alpha")
    with served_page(tmp_path, StoreCatalog([url])) as served:
        assert eventually(lambda: "breaker open" in served.get("/runner").body)
        assert "5 runs failed in a row" in served.get("/runner").body
        with log.open("a") as file:
            closed = {"event": "work_breaker_closed", "level": "info", "open_for": 1.0}
            file.write(json.dumps({**opened, **closed}) + "\n")
        assert eventually(lambda: "breaker open" not in served.get("/runner").body)
