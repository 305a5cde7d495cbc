"""The status page in Chromium, beside a `longwatch up` with real programs."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import Browser, browser
from page_process import PageClient, client_of
from polling import complete_lines, eventually
from run_process import TIMEOUT, start_process
from up_process import (
    FROM_SOURCE,
    NO_BACKOFF,
    SLEEPER,
    Facts,
    UpProcess,
    sh,
    start_up,
    unused_port,
)
from worker_process import opened_mailbox, store_url, write_app, write_workers

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["browser"]

MARKUP_LINE = "<b>bold</b>"
PROGRAMS: Mapping[str, Facts] = {
    "api": sh(f"echo '{MARKUP_LINE}'; exec sleep 1000", backoff={"initial": 30, "cap": 30}),
    "worker": SLEEPER,
    "broken": sh("exit 3", backoff={"initial": 0.01, "cap": 0.01}, breaker={"restarts": 1}),
}


@contextmanager
def running(
    cwd: Path, programs: Mapping[str, Facts] = PROGRAMS, **top: Any
) -> Iterator[tuple[UpProcess, PageClient]]:
    """`longwatch up` with a status page, and a client of the page."""
    env = {"LONGWATCH_PAGE_PORT": str(unused_port())}
    with start_up(cwd=cwd, programs=programs, env=env, **top, **FROM_SOURCE) as up:
        yield up, client_of(up.state_dir)
        if up.process.poll() is None:
            up.stop_cleanly()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[UpProcess, PageClient]]:
    """One `longwatch up` for the tests that change nothing."""
    with running(tmp_path_factory.mktemp("page")) as started:
        up, _ = started
        up.wait_for_status("page", ready=True)
        up.wait_for_status("broken", state="broken")
        yield started


def sign_in(page: Page, client: PageClient, path: str = "/") -> None:
    page.goto(f"{client.base}{path}?token={client.token}")
    page.wait_for_selector("#connection:text('Live')")


def actions_taken(up: UpProcess) -> list[tuple[str, str, bool]]:
    """The actions in the log of events: name, subject, and whether they succeeded."""
    records = map(json.loads, complete_lines(up.logs / "watchdog.log"))
    return [
        (record["action"], record["subject"], record["ok"])
        for record in records
        if record["event"] == "page_action_taken"
    ]


# --- what changes nothing ---


def test_the_overview_says_first_what_is_unhealthy_and_why(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def scenario(page: Page) -> tuple[str, str]:
        sign_in(page, client)
        assert "token" not in page.url
        return page.inner_text(".verdict"), page.inner_text(".problem")

    verdict, problem = browser.run(scenario)
    assert "1 thing needs attention" in verdict
    assert re.search(r"breaker open\s+broken\s+for \d+ s · one trial in", problem)
    assert "2 failures in 60 s; exit 3 (unexpected exit)" in problem


def test_a_person_drills_down_from_a_problem_to_the_log_and_the_events(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def scenario(page: Page) -> tuple[str, str, str]:
        sign_in(page, client)
        page.click(".problem-name:text('broken')")
        events = page.inner_text("#events")
        page.click("nav[aria-label=Pages] >> text=Programs")
        page.click("th >> text=api")
        page.click("text=More of the log")
        log = page.inner_text(".log")
        return events, log, page.url

    events, log, url = browser.run(scenario)
    assert {"circuit_breaker_tripped", "unexpected_exit"} <= set(events.split())
    assert MARKUP_LINE == log.strip()
    assert url.endswith("/logs/api")


def test_saved_stacks_are_one_click_away(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    up, client = served
    pid = up.status("worker")["pid"]
    crashes = up.state_dir / "crashes"
    crashes.mkdir(exist_ok=True)
    (crashes / f"group-20260101T000000-{pid}-abc123.stacks").write_text(
        'Thread 0x1:\n  File "handler.py", line 3 in work\n'
    )

    def scenario(page: Page) -> str:
        sign_in(page, client, "/programs/worker")
        page.click("#health a")
        return page.inner_text(".log")

    assert 'File "handler.py", line 3 in work' in browser.run(scenario)


def test_every_page_has_landmarks_one_title_and_names_for_its_controls(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served
    paths = ("/", "/programs", "/programs/api", "/workers", "/restarts", "/events", "/logs/api")

    def scenario(page: Page) -> dict[str, list[str]]:
        found = {}
        for path in paths:
            sign_in(page, client, path)
            found[path] = page.evaluate(_ACCESSIBILITY_FAULTS)
        return found

    assert {path: [] for path in paths} == browser.run(scenario)


_ACCESSIBILITY_FAULTS = """() => {
  const faults = [];
  const count = (selector) => document.querySelectorAll(selector).length;
  for (const [selector, wanted] of [["main", 1], ["h1", 1], ["header", 1], ["a.skip", 1]]) {
    if (count(selector) !== wanted) faults.push(`${count(selector)} of ${selector}`);
  }
  if (!document.documentElement.lang) faults.push("no language");
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption || !table.caption.textContent.trim()) faults.push("table without caption");
    if (table.querySelector("th:not([scope])")) faults.push("th without scope");
  }
  for (const each of document.querySelectorAll("button, a, input:not([type=hidden]), select")) {
    const label = each.labels && each.labels.length ? each.labels[0].textContent : "";
    const name = each.getAttribute("aria-label") || each.textContent.trim() || label.trim();
    if (!name) faults.push(`no name: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("svg")) {
    if (!each.getAttribute("aria-label") && each.getAttribute("aria-hidden") !== "true")
      faults.push("svg without text");
  }
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  return faults;
}"""


def test_the_keyboard_reaches_the_content_first_by_the_skip_link(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def scenario(page: Page) -> list[str]:
        sign_in(page, client, "/programs")
        focused = []
        page.keyboard.press("Tab")
        focused.append(page.evaluate("document.activeElement.textContent"))
        visible = page.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
        focused.append("visible" if visible else "hidden")
        page.keyboard.press("Enter")
        focused.append(page.evaluate("document.activeElement.id"))
        for _ in range(4):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.name || ''"))
        return focused

    assert [
        *("Skip to the content", "visible", "main"),
        *("text", "state", "", ""),
    ] == browser.run(scenario)


def test_pages_work_without_javascript(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def scenario(page: Page) -> tuple[str, str]:
        page.goto(client.link)
        page.click("text=Programs")
        page.fill("input[name=text]", "wor")
        page.click("text=Show")
        rows = page.inner_text("tbody")
        page.click("th >> text=worker")
        page.click("button >> text=Stop")
        return rows, page.inner_text("main")

    rows, asked = browser.run(scenario, java_script_enabled=False)
    assert "worker" in rows
    assert "api" not in rows
    assert "Stop worker?" in asked


def test_the_dark_scheme_is_followed(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def brightness(page: Page) -> int:
        sign_in(page, client)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert browser.run(brightness, color_scheme="dark") < 150
    assert browser.run(brightness, color_scheme="light") > 600


def test_a_narrow_screen_does_not_scroll_sideways(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def scenario(page: Page) -> list[bool]:
        fits = []
        for path in ("/", "/programs", "/programs/broken", "/restarts", "/events"):
            sign_in(page, client, path)
            fits.append(bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth")))
        return fits

    assert [True] * 5 == browser.run(scenario, viewport={"width": 390, "height": 800})


@pytest.mark.parametrize("path", ["/events", "/programs"])
def test_a_narrow_screen_shows_each_reason_without_scrolling(
    browser: Browser, served: tuple[UpProcess, PageClient], path: str
) -> None:
    _, client = served

    def scenario(page: Page) -> list[bool]:
        sign_in(page, client, path)
        details = page.locator("tbody td:last-child")
        boxes = [each.bounding_box() for each in details.all()]
        return [box is not None and 0 < box["x"] + box["width"] <= 390 for box in boxes]

    fits = browser.run(scenario, viewport={"width": 390, "height": 800})
    assert fits
    assert all(fits)


def test_without_the_token_there_is_a_form_for_it_and_nothing_else(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    _, client = served

    def scenario(page: Page) -> tuple[str, str]:
        page.goto(f"{client.base}/programs")
        refused = page.content()
        page.fill("input[name=token]", client.token)
        page.click("text=Open")
        return refused, page.inner_text(".verdict")

    refused, verdict = browser.run(scenario, allowed_errors=("Failed to load resource",))
    assert "This page needs its token" in refused
    assert "api" not in refused
    assert "attention" in verdict


def test_another_site_can_neither_read_frame_nor_act_with_the_cookie(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    """The other site is the same server under another name, so that the cookie would be sent."""
    up, client = served
    action = "/programs/worker/stop"
    token = client.policy.action_token(action)
    evil = f"""<form method=post action={client.base}{action}><input name=confirmed value=yes>
    <input name=action_token value={token}></form><iframe src={client.base}/programs></iframe>"""

    def scenario(page: Page) -> tuple[str, str, str]:
        sign_in(page, client)
        other = page.context.new_page()
        other.route(
            "http://evil.localhost:*/**",
            lambda route: route.fulfill(body=evil, content_type="text/html"),
        )
        other.goto(f"http://evil.localhost:{client.port}/")
        read = other.evaluate(
            "url => fetch(url, {credentials: 'include'}).then(() => 'read', () => 'refused')",
            f"{client.base}/programs",
        )
        frame = other.frames[1].url
        other.evaluate("document.forms[0].submit()")
        other.wait_for_url(f"{client.base}{action}")
        return read, frame, other.inner_text("main")

    read, frame, answer = browser.run(
        scenario,
        hosts=("evil.localhost",),
        allowed_errors=("Failed to load", "Refused", "Access to"),
    )
    assert "refused" == read
    assert frame.startswith("chrome-error:")
    assert "Another site sent this request" in answer
    assert up.status("worker")["up"]
    assert [] == actions_taken(up)


def test_a_foreign_name_for_this_address_shows_nothing(
    browser: Browser, served: tuple[UpProcess, PageClient]
) -> None:
    """As after DNS rebinding: the name leads here, and the token is right."""
    _, client = served

    def scenario(page: Page) -> tuple[int, str]:
        response = page.goto(f"http://rebound.localhost:{client.port}/?token={client.token}")
        assert response is not None
        return response.status, page.inner_text("body")

    status, text = browser.run(
        scenario, allowed_errors=("Failed to load resource",), hosts=("rebound.localhost",)
    )
    assert 421 == status
    assert "does not go by the name" in text
    assert "api" not in text


# --- what changes something ---


def test_a_killed_program_is_seen_without_a_reload(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path, {"api": PROGRAMS["api"], "worker": SLEEPER}) as (up, client):
        pid = up.wait_for_status("api", up=True)["pid"]
        up.wait_for_status("page", ready=True)

        def scenario(page: Page) -> tuple[str, str]:
            sign_in(page, client)
            page.wait_for_selector(".verdict:has-text('Everything is as it should be')")
            page.evaluate("window.notReloaded = true")
            os.kill(pid, signal.SIGKILL)
            page.wait_for_selector(".problem:has-text('api')")
            problem = page.inner_text(".problem")
            assert page.evaluate("window.notReloaded")
            event = page.inner_text("#events tbody tr")
            return problem, event

        problem, event = browser.run(scenario)
        assert re.search(r"down\s+api\s+for \d.*· starts again in (29|30) s", problem)
        assert "signal 9" in problem
        assert "unexpected_exit" in event


def test_an_action_asks_first_and_is_an_event_in_the_log(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path, {"api": PROGRAMS["api"], "worker": SLEEPER}) as (up, client):
        up.wait_for_status("page", ready=True)

        def scenario(page: Page) -> tuple[str, bool, str]:
            sign_in(page, client, "/programs/worker")
            page.click("button >> text=Stop")
            asked = page.inner_text("main")
            still_up = up.status("worker")["up"]
            page.click("button >> text=Stop")
            page.wait_for_selector(".notice")
            notice = page.inner_text(".notice")
            page.wait_for_selector(".state-line:has-text('stopped')")
            page.click("button >> text=Start")
            page.click("button >> text=Start")
            page.wait_for_selector(".notice:has-text('was started')")
            return asked, still_up, notice

        asked, still_up, notice = browser.run(scenario)
        assert "Stop worker?" in asked
        assert still_up
        assert "worker was stopped." == notice
        assert up.wait_for_status("worker", up=True)
        assert eventually(lambda: 2 == len(actions_taken(up)))
        assert [("stop", "worker", True), ("start", "worker", True)] == actions_taken(up)


def test_the_page_outlives_its_supervisor_and_keeps_what_it_knows(
    browser: Browser, tmp_path: Path
) -> None:
    """A page that runs by itself: the supervisor goes and comes while it is open."""
    with start_up(cwd=tmp_path, programs={"api": PROGRAMS["api"]}, **FROM_SOURCE) as up:
        up.wait_for_status("api", up=True)
        words = [*FROM_SOURCE["within"], "longwatch", "page", "--port", "0"]
        with start_process(words, tmp_path) as (process, _, _):
            client = client_of(up.state_dir)

            def scenario(page: Page) -> tuple[str, str]:
                sign_in(page, client)
                page.wait_for_selector(".verdict:has-text('Everything')")
                up.stop_cleanly()
                page.wait_for_selector(".verdict:has-text('No supervisor answers')")
                gone = page.inner_text("#supervisors")
                events = client.get("/events").body
                with start_up(cwd=tmp_path, **FROM_SOURCE) as again:
                    again.wait_for_status("api", up=True)
                    page.wait_for_selector(".verdict:has-text('Everything')")
                    again.stop_cleanly()
                return gone, events

            gone, events = browser.run(scenario)
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(TIMEOUT)
    assert re.search(r"No supervisor answers for \d", gone)
    assert "What follows is what it said at" in gone
    assert "supervisor_stopped" in events


def test_a_worker_that_hangs_is_one_click_from_its_stacks(browser: Browser, tmp_path: Path) -> None:
    write_app(tmp_path)
    write_workers(tmp_path, {"jobs": {"target": "app:group", **NO_BACKOFF}}, {"api": SLEEPER})
    env = {
        "STORE": store_url(tmp_path),
        "THRESHOLD": "2",
        "LONGWATCH_PAGE_PORT": str(unused_port()),
    }
    with start_up(cwd=tmp_path, env=env, **FROM_SOURCE) as up:
        up.wait_for_status("page", ready=True)
        up.wait_for_status("jobs", ready=True)
        client = client_of(up.state_dir)

        def scenario(page: Page) -> tuple[str, str, str]:
            sign_in(page, client, "/workers")
            page.wait_for_selector("tbody >> text=jobs")
            worker = page.inner_text("#workers tbody tr")
            with opened_mailbox(store_url(tmp_path)) as mailbox:
                mailbox.send({"id": "1", "do": "silent"})
            page.wait_for_selector("#stacks tbody tr:has-text('no beat for')")
            why = page.inner_text("#stacks tbody tr")
            page.click("#stacks tbody a")
            return worker, why, page.inner_text(".log")

        worker, why, stacks = browser.run(scenario)
    assert re.search(r"jobs\s+pid \d+\s.*\s\w+ beat .* ago", worker, re.DOTALL)
    assert re.search(r"jobs\s.*no beat for", why)
    assert "app.py" in stacks
    assert "in silent" in stacks


def test_focus_and_open_details_survive_an_update(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path, {"api": PROGRAMS["api"], "broken": PROGRAMS["broken"]}) as (up, client):
        up.wait_for_status("page", ready=True)
        up.wait_for_status("broken", state="broken")
        pid = up.wait_for_status("api", up=True)["pid"]

        def scenario(page: Page) -> tuple[bool, str]:
            sign_in(page, client, "/restarts")
            page.click("summary")
            page.focus("th >> text=broken")
            before = page.inner_text("#hours")
            os.kill(pid, signal.SIGKILL)
            page.wait_for_selector("#down:has-text('api')")
            page.wait_for_function(
                "before => document.querySelector('#hours').innerText !== before", arg=before
            )
            opened = bool(page.evaluate("document.querySelector('#hours details').open"))
            return opened, str(page.evaluate("document.activeElement.textContent"))

        assert (True, "broken") == browser.run(scenario)


def test_five_hundred_programs_are_paged_and_found(browser: Browser, tmp_path: Path) -> None:
    programs = {f"job-{number:03}": {**SLEEPER, "log": {"console": False}} for number in range(500)}
    with running(tmp_path, programs) as (up, client):
        up.wait_for_status("page", ready=True)
        up.wait_for_status("job-499", up=True)

        def scenario(page: Page) -> tuple[int, str, int]:
            sign_in(page, client, "/programs")
            shown = page.locator("tbody tr").count()
            page.click("text=Next →")
            second = page.inner_text(".pager")
            page.fill("input[name=text]", "job-123")
            page.click("text=Show")
            page.wait_for_url("**text=job-123**")
            return shown, second, page.locator("tbody tr").count()

        shown, second, found = browser.run(scenario)
        assert 100 == shown
        assert "Page 2 of 6" in second
        assert 1 == found
        assert eventually(lambda: 501 == len(up.pids()))
