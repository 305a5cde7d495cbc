# ruff: noqa: F811 - a fixture is a parameter of its tests
"""The pages of stores in Chromium: actions, live changes, long lists, markup, a store that goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import Browser, browser  # noqa: F401 - a fixture
from flow_stores import opened_database
from longwatch.mailbox.url import open_mailbox
from longwatch.store.database import Database
from page_rig import RunningPage, running_page
from page_stores import GraphWorker, RunnerQueue, add_source, dead_letter, letters_graph
from redis_server import RedisServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
INSERT_EXECUTIONS = """
INSERT INTO longwatch_executions
    (id, graph, version, known_nodes, settled_nodes, state, settled_at, created_at, updated_at)
SELECT 'e' || value, 'letters <b>', '1', 3, 3, 1 + value % 3, value, value, value
FROM json_each(:numbers)
"""


@pytest.fixture(name="database")
def database_fixture(tmp_path: Path) -> Iterator[Database]:
    with opened_database(f"sqlite:///{tmp_path}/store.db") as database:
        database.write(lambda _: None)
        yield database


@pytest.fixture(name="served")
def served_fixture(database: Database) -> Iterator[RunningPage]:
    with running_page(database.url) as served:
        yield served


def opened(page: Page, served: RunningPage, path: str) -> None:
    """Sign in, and open a path."""
    page.goto(served.link)
    page.goto(f"{served.base}{path}")


def rows(page: Page, section: str) -> int:
    return page.locator(f"#{section} tbody tr").count()


def test_a_dead_letter_is_replayed_and_leaves(
    browser: Browser,
    served: RunningPage,
    database: Database,
) -> None:
    mailbox = open_mailbox(database, "orders")
    for number in range(3):
        dead_letter(mailbox.backend, b'{"order": %d}' % number, error="CardError: refused")

    def scenario(page: Page) -> None:
        opened(page, served, "/mailboxes")
        watching = page.context.new_page()
        watching.goto(f"{served.base}/mailboxes")
        page.get_by_role("link", name="orders").click()
        assert 3 == rows(page, "dead")
        page.locator("#dead tbody th a").first.click()
        page.get_by_text('"order": 0').wait_for()
        page.get_by_role("button", name="Replay").click()
        page.get_by_role("heading", name="Replay dead letter").wait_for()
        assert 3 == mailbox.stats().dead
        page.get_by_role("button", name="Replay").click()
        page.get_by_text("1 dead letter of mailbox orders replayed.").wait_for()
        assert 2 == rows(page, "dead")
        assert '{"order": 0}' in page.locator("#waiting").inner_text()
        watching.locator("#mailboxes tbody td.text-bad", has_text="2").wait_for()
        page.get_by_role("button", name="Drop all").click()
        page.get_by_role("button", name="Drop for good").click()
        page.get_by_text("There are no dead letters.").wait_for()
        watching.locator("#mailboxes .badge", has_text="waiting").wait_for()

    browser.run(scenario)
    assert (1, 0) == mailbox.stats()[0:4:3]


def test_ten_thousand_executions_come_in_pages(
    browser: Browser,
    served: RunningPage,
    database: Database,
) -> None:
    GraphWorker(database, letters_graph()).flow.start("letters <b>")
    numbers = str(list(range(1, 10_001)))
    database.write(lambda tx: tx.execute(INSERT_EXECUTIONS, {"numbers": numbers}))

    def scenario(page: Page) -> list[str]:
        opened(page, served, "/flows")
        assert "10,001" in page.locator("#graphs tbody").inner_text()
        found: list[str] = []
        for _ in range(3):
            assert 100 == rows(page, "executions")
            found += page.locator("#executions tbody th").all_inner_texts()
            page.get_by_role("link", name="Older").click()
            page.wait_for_load_state()
        page.locator("select[name=state]").select_option("done")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("link", name="Older").click()
        states = set(page.locator("#executions tbody .badge").all_inner_texts())
        assert {"done"} == {state.split()[-1] for state in states}
        page.get_by_label("ID, or key=value").fill("e77")
        page.get_by_role("button", name="Show").click()
        assert 1 == rows(page, "executions")
        return found

    expected = [f"e{number}" for number in range(10_000, 9_700, -1)]
    assert expected == browser.run(scenario)


def test_markup_in_names_values_and_errors_is_text(
    browser: Browser,
    served: RunningPage,
    database: Database,
    tmp_path: Path,
) -> None:
    worker = GraphWorker(database, letters_graph())
    execution = worker.failed_execution(MARKUP, topics=[MARKUP])
    sent = dead_letter(open_mailbox(database, "jobs").backend, f'"{MARKUP}"'.encode(), error=MARKUP)
    add_source(database, "alpha", error=MARKUP)
    queue = RunnerQueue(database, "alpha")
    queue.put(text=MARKUP)
    run_id, row = queue.begin(tmp_path)
    (tmp_path / "stdout.log").write_text(f"\x1b[1m{MARKUP}\x1b[0m\n")
    queue.fail(run_id, row, error=MARKUP)
    [key] = served.keys

    def scenario(page: Page) -> None:
        opened(page, served, "/flows")
        for path in (
            f"/flows/{key}/{execution.id}",
            f"/mailboxes/{key}/jobs",
            f"/mailboxes/{key}/jobs/dead/{sent}",
            "/runner",
            f"/runner/{key}/runs/{run_id}",
        ):
            page.goto(f"{served.base}{path}")
            assert "<b>bold</b>" in page.locator("main").inner_text()
            assert 0 == page.locator("main img, main b").count()

    browser.run(scenario)


def test_a_failed_execution_is_retried_and_the_picture_changes(
    browser: Browser,
    served: RunningPage,
    database: Database,
) -> None:
    worker = GraphWorker(database, letters_graph())
    execution = worker.failed_execution("refused")
    [key] = served.keys

    def scenario(page: Page) -> None:
        opened(page, served, f"/flows/{key}/{execution.id}")
        picture = page.locator("svg.graph")
        picture.locator("a.state-failed", has_text="pages").wait_for()
        picture.locator("a.state-blocked", has_text="titles").wait_for()
        picture.locator("a.state-failed").click()
        assert page.url.endswith("#node-pages")
        page.get_by_role("button", name="Retry the failed node").click()
        page.get_by_role("button", name="Retry").click()
        page.get_by_text("pages will be computed again").wait_for()
        picture.locator("a.state-waiting", has_text="pages").wait_for()
        assert 2 == worker.compute()
        picture.locator("a.state-fresh", has_text="titles").wait_for()
        assert 0 == page.get_by_role("button", name="Retry").count()

    browser.run(scenario)


def test_the_output_of_a_run_is_followed(
    browser: Browser,
    served: RunningPage,
    database: Database,
    tmp_path: Path,
) -> None:
    add_source(database, "alpha")
    queue = RunnerQueue(database, "alpha")
    queue.put(pod="a")
    log = tmp_path / "stdout.log"
    log.write_text("the agent begins\n")
    run_id, row = queue.begin(tmp_path)

    def scenario(page: Page) -> None:
        opened(page, served, "/runner")
        page.locator("#running th a").click()
        page.locator("#stdout", has_text="the agent begins").wait_for()
        with log.open("a") as file:
            file.write("\x1b[32mthe agent goes on\x1b[0m\n")
        page.locator("#stdout", has_text="the agent goes on").wait_for()
        queue.fail(run_id, row, error="it broke")
        page.locator("#state .badge", has_text="failure").wait_for()
        page.get_by_role("button", name="Queue the event again").click()
        page.get_by_role("button", name="Queue again").click()
        page.get_by_text("is queued again").wait_for()

    browser.run(scenario)
    again, _ = queue.begin(tmp_path)
    assert again != run_id


def test_a_store_that_goes_and_comes_back_while_the_page_is_open(
    browser: Browser,
    database: Database,
    tmp_path: Path,
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        open_mailbox(database, "local").send(1)
        open_mailbox(server.url, "far").send(1)

        def scenario(page: Page) -> None:
            opened(page, served, "/mailboxes")
            table = page.locator("#mailboxes")
            table.get_by_role("link", name="far").wait_for()
            server.kill()
            table.get_by_text("A store does not answer.").wait_for()
            table.get_by_role("link", name="local").wait_for()
            assert 0 == table.get_by_role("link", name="far").count()
            server.start()
            table.get_by_role("link", name="far").wait_for()
            assert 0 == table.get_by_text("A store does not answer.").count()

        with running_page(database.url, server.url, timeout=1.0) as served:
            browser.run(scenario)
    finally:
        server.kill()


def test_the_pages_work_without_javascript(
    browser: Browser,
    served: RunningPage,
    database: Database,
) -> None:
    mailbox = open_mailbox(database, "orders")
    dead_letter(mailbox.backend, b"1")

    def scenario(page: Page) -> None:
        opened(page, served, "/mailboxes")
        page.get_by_role("link", name="orders").click()
        page.get_by_role("button", name="Replay all").click()
        page.get_by_role("button", name="Replay").click()
        page.get_by_text("1 dead letter of mailbox orders replayed.").wait_for()

    browser.run(scenario, java_script_enabled=False)
    assert 0 == mailbox.stats().dead


def test_a_narrow_screen_shows_dead_letters_and_reasons_of_nodes_without_scrolling(
    browser: Browser, served: RunningPage, database: Database
) -> None:
    mailbox = open_mailbox(database, "orders")
    sent = dead_letter(mailbox.backend, b"1", error="no order " * 50)
    execution = GraphWorker(database, letters_graph()).failed_execution("no page " * 50, topics=[1])
    [key] = served.keys

    def scenario(page: Page) -> list[float]:
        opened(page, served, f"/mailboxes/{key}/orders/dead/{sent}")
        widths: list[float] = [page.evaluate("document.documentElement.scrollWidth")]
        opened(page, served, f"/flows/{key}/{execution.id}")
        for reason in page.locator("#nodes .why, #elements .why").all():
            box = reason.bounding_box()
            assert box is not None
            widths.append(box["x"] + box["width"])
        return widths

    widths = browser.run(scenario, viewport={"width": 360, "height": 740})
    assert len(widths) > 5
    assert max(widths) <= 360
