"""The HTTP server of the status page: what each request gets, and what no client can do to it."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from longwatch.app import control
from longwatch.core.events.page import PageActionTaken
from longwatch.errors import TryAgainError
from longwatch.page import action_runner, live, live_streams, server
from longwatch.page.data import ControlSource, ControlView
from longwatch.page.stores import StoreCatalog, store_key
from page_process import TOKEN, ServedPage, served_page
from polling import eventually
from small_disk import fill_disk, small_filesystem

PAGES = ("/", "/programs", "/containers", "/workers", "/restarts", "/events", "/logs")
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "crashes").mkdir()
    return tmp_path


@pytest.fixture
def page(state: Path) -> Iterator[ServedPage]:
    with served_page(state) as opened:
        yield opened


def test_every_page_answers_without_a_supervisor_and_says_that_there_is_none(
    page: ServedPage,
) -> None:
    for path in PAGES:
        answer = page.get(path)
        assert (200, "text/html; charset=utf-8") == (answer.status, answer.headers["content-type"])
        assert '<nav aria-label="Pages">' in answer.body
    assert "No supervisor answers" in page.get("/").body


def test_a_disk_without_space_is_unhealthy(tmp_path: Path) -> None:
    with small_filesystem(tmp_path) as disk:
        (state := disk / "state").mkdir()
        store = StoreCatalog([f"sqlite:///{disk}/jobs.db", "sqlite:///nothing/jobs%00.db"])
        with served_page(state) as of_state, served_page(None, store) as of_store:
            for page in (of_state, of_store):
                assert "free; without space" not in page.get("/").body
            fill_disk(disk)
            for page in (of_state, of_store):
                assert "disk full" in page.get("/").body
                assert "0 B free" in page.get("/").body


def test_every_answer_forbids_frames_foreign_content_and_caches(page: ServedPage) -> None:
    for answer in (
        page.get("/"),
        page.get("/nothing"),
        page.get("/static/page.js"),
        page.request("GET", "/", headers={}),
        page.request("GET", "/", headers={"Host": "evil.example.org"}),
        page.request("PUT", "/", headers=page.authorized),
        page.request("OPTIONS", "*", headers=page.authorized),
        page.get("/a%0Ab"),
    ):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; ")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "DENY" == answer.headers["x-frame-options"]
        assert "no-referrer" == answer.headers["referrer-policy"]
        assert "no-store" == answer.headers["cache-control"]
        assert "longwatch" == answer.headers["server"]
        assert "nosniff" == answer.headers["x-content-type-options"]
        assert "style=" not in answer.body.replace("data-style=", "")
        assert not re.search(r"<script(?! src=)|\son\w+=|<style", answer.body)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {}),
        (401, {"Authorization": "Bearer wrong"}),
        (401, {"Cookie": "longwatch_page=x"}),
        (421, {"Host": "evil.example.org", "Authorization": f"Bearer {TOKEN}"}),
        (403, {"Sec-Fetch-Site": "cross-site", "Authorization": f"Bearer {TOKEN}"}),
        (403, {"Origin": "https://evil.example.org", "Authorization": f"Bearer {TOKEN}"}),
        (
            200,
            {"Origin": "http://localhost", "Host": "localhost"}
            | {"Authorization": f"Bearer {TOKEN}"},
        ),
    ],
)
def test_refusals_say_no_more_than_why(
    page: ServedPage, status: int, headers: dict[str, str]
) -> None:
    for path in ("/programs", "/live?path=/", "/nothing", "/a%0Ab"):
        if status == 200 and path != "/programs":
            continue
        answer = page.request("GET", path, headers=headers)
        assert status == answer.status
        assert status == 200 or "<nav" not in answer.body


def test_a_link_sets_the_cookie_and_leads_to_the_page_without_the_token(page: ServedPage) -> None:
    answer = page.request("GET", f"/programs?text=a&token={TOKEN}", headers={})
    cookie = answer.headers["set-cookie"]

    assert (303, "/programs?text=a") == (answer.status, answer.headers["location"])
    assert f"longwatch_page_{page.port}=" in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {each.strip() for each in cookie.split(";")}
    assert TOKEN not in cookie
    followed = page.request("GET", "/programs", headers={"Cookie": cookie.partition(";")[0]})
    assert 200 == followed.status


def test_a_link_followed_from_another_site_gets_a_page_that_leads_on(page: ServedPage) -> None:
    """After a redirect the browser would not send the cookie, because it began elsewhere."""
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    answer = page.request("GET", f"/events?token={TOKEN}", headers=headers)

    assert 200 == answer.status
    assert 'http-equiv="refresh" content="0;url=/events"' in answer.body
    assert "set-cookie" in answer.headers


@pytest.mark.parametrize("slashes", ["//", "/\\"])
def test_a_link_never_leads_to_another_host(page: ServedPage, slashes: str) -> None:
    answer = page.request("GET", f"{slashes}evil.example.org/?token={TOKEN}", headers={})

    assert answer.status in {303, 400, 404, 421}
    assert "evil" not in answer.headers.get("location", "")


@pytest.mark.parametrize(
    ("status", "method", "path"),
    [
        (404, "GET", "/nothing"),
        (404, "GET", "/programs/nothing"),
        (404, "GET", "/static/../server.py"),
        (404, "GET", "/static/nothing.css"),
        (404, "GET", "/stacks/..%2F..%2Fpasswd"),
        (404, "GET", "/logs/%2Fetc%2Fpasswd"),
        (404, "GET", "/live?path=/nothing"),
        (405, "DELETE", "/programs"),
        (405, "POST", "/"),
        (405, "OPTIONS", "/"),
        (405, "GET", "/programs/web/stop"),
        (200, "HEAD", "/programs"),
    ],
)
def test_unknown_paths_and_wrong_methods_are_answered_with_the_navigation(
    page: ServedPage, status: int, method: str, path: str
) -> None:
    token = page.policy.action_token(path)
    body = urlencode({"action_token": token}) if method == "POST" else ""
    answer = page.request(method, path, body, headers=page.authorized)

    assert status == answer.status
    if status == 405:
        assert answer.headers["allow"]
    if method == "HEAD":
        assert not answer.body
        assert int(answer.headers["content-length"]) > 500
    else:
        assert '<nav aria-label="Pages">' in answer.body


def test_huge_and_hostile_queries_are_harmless(page: ServedPage) -> None:
    assert page.get("/programs?text=" + "a" * 100_000).status in {400, 414}
    assert 200 == page.get("/programs?text=" + "a" * 5000).status
    assert 200 == page.get("/programs?page=99999999999999999999&page=-1").status
    assert 200 == page.get("/programs?page=%00&state=%ff&&&==").status
    odd = {**page.authorized, "Content-Type": "text/plain; charset=nothing"}
    assert 403 == page.request("POST", "/programs/web/stop", "é=%ff", headers=odd).status
    assert 413 == page.post("/programs/web/stop", "x=" + "a" * 200_000).status
    shown = page.get(f"/programs?text={MARKUP}").body
    assert MARKUP not in shown


def test_names_and_logs_with_markup_are_shown_as_text(state: Path, page: ServedPage) -> None:
    (state / "logs" / f"x{MARKUP.replace('/', '')}.log").write_text(MARKUP)
    (state / "logs" / "web.log").write_text(f"{MARKUP}\n\x1b[31mred\x1b[0m\x07")

    for path in ("/logs", "/logs/web", "/programs/web"):
        assert "<script>alert" not in page.get(path).body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\nred\\x07" in page.get("/logs/web").body


def test_an_action_needs_a_confirmation_and_its_own_token(page: ServedPage) -> None:
    path = "/programs/web/stop"
    token = page.policy.action_token(path)

    assert 403 == page.post(path, "confirmed=yes").status
    other = page.policy.action_token("/programs/web/start")
    assert 403 == page.post(path, urlencode({"confirmed": "yes", "action_token": other})).status
    assert 404 == page.post(path, urlencode({"action_token": token})).status
    assert [] == page.events


@pytest.fixture
def slow_commands(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[list[str], threading.Event]]:
    """Commands on a program `web` that take until the event. Yields those that have begun."""
    release, begun = threading.Event(), list[str]()

    def request(command: str, *_args: object, **_options: object) -> dict[str, object]:
        begun.append(command)
        release.wait(60)
        return {}

    monkeypatch.setattr(
        page.data.control, "status", lambda: ControlView(programs=[{"name": "web"}])
    )
    monkeypatch.setattr(page.data.control, "request", request)
    yield begun, release
    release.set()


def act_at_the_same_time(page: ServedPage, count: int) -> list[threading.Thread]:
    path = "/programs/web/stop"
    form = urlencode({"confirmed": "yes", "action_token": page.policy.action_token(path)})
    threads = [threading.Thread(target=page.post, args=(path, form)) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_slow_actions_do_not_hold_up_pages(
    page: ServedPage,
    slow_commands: tuple[list[str], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, release = slow_commands
    monkeypatch.setattr(server, "VIEW_TIMEOUT", 2.0)
    threads = act_at_the_same_time(page, action_runner.ACTION_POOL_SIZE)
    assert eventually(lambda: len(begun) >= server.POOL_SIZE)
    answer = page.get("/logs")
    release.set()
    for thread in threads:
        thread.join()

    assert 200 == answer.status


def test_an_action_that_finds_no_thread_says_so_and_never_runs(
    page: ServedPage,
    slow_commands: tuple[list[str], threading.Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(action_runner, "ACTION_TIMEOUT", 3.0)
    for thread in act_at_the_same_time(page, action_runner.ACTION_POOL_SIZE + 1):
        thread.join()

    taken = [event for event in page.events if isinstance(event, PageActionTaken)]
    assert action_runner.ACTION_POOL_SIZE == len(slow_commands[0])
    assert action_runner.ACTION_POOL_SIZE + 1 == len(taken)
    [refused] = [event for event in taken if not event.ok]
    assert "was not begun" in refused.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("a bug <b>"), "RuntimeError: a bug <b>"),
        (TryAgainError("the supervisor is gone"), "the supervisor is gone"),
    ],
)
@pytest.mark.parametrize("fails", ["confirm", "run"])
def test_an_action_that_fails_is_logged_and_shown_as_that(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch, fails: str, error: Exception, reason: str
) -> None:
    def fail(*_args: object, **_options: object) -> ControlView:
        raise error

    seen = ControlView(programs=[{"name": "web"}])
    monkeypatch.setattr(page.data.control, "status", fail if fails == "confirm" else lambda: seen)
    monkeypatch.setattr(page.data.control, "request", fail)
    path = "/programs/web/stop"
    form = urlencode({"confirmed": "yes", "action_token": page.policy.action_token(path)})
    answer = page.post(path, form)
    monkeypatch.setattr(page.data.control, "status", lambda: seen)

    assert 303 == answer.status
    [taken] = page.events
    assert isinstance(taken, PageActionTaken)
    assert ("stop", False) == (taken.action, taken.ok)
    assert taken.error.endswith(reason)
    shown = page.get("/logs?" + answer.headers["location"].partition("?")[2]).body
    assert reason.replace("<", "&lt;").replace(">", "&gt;") in shown


def test_the_stacks_of_a_worker_are_shown_and_nothing_beside_them(
    state: Path, page: ServedPage
) -> None:
    name = "jobs-1-20260101T000000-12-abc123.stacks"
    (state / "crashes" / name).write_text('Thread 0x01:\n  File "handler.py", line 3 in <lambda>\n')
    (state / "crashes" / "link.stacks").symlink_to("/etc/passwd")

    assert name in page.get("/workers").body
    assert "handler.py&#34;, line 3 in &lt;lambda&gt;" in page.get(f"/stacks/{name}").body
    assert 404 == page.get("/stacks/link.stacks").status


def test_a_store_that_hangs_is_named_and_the_rest_of_the_page_works(state: Path) -> None:
    release = threading.Event()
    url = "postgresql://me:secret@db/jobs"
    catalog = StoreCatalog([url], opener=lambda _: release.wait(), timeout=0.05)
    with served_page(state, catalog) as page:
        with pytest.raises(Exception, match="does not answer"):
            page.data.stores.open(store_key(url))
        body = page.get("/").body
        release.set()

    assert "store does not answer" in body
    assert "db/jobs" in body
    assert "secret" not in body


def test_a_view_that_takes_too_long_is_an_answer_too(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(server, "VIEW_TIMEOUT", 0.05)
    monkeypatch.setattr(page.data.control, "status", lambda: release.wait(60))
    answer = page.get("/programs")
    release.set()

    assert 503 == answer.status
    assert '<nav aria-label="Pages">' in answer.body


def test_a_fault_of_ours_is_a_page_and_an_event(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a bug <b>")

    monkeypatch.setattr(page.data.control, "status", fail)
    answer = page.get("/programs")

    assert 500 == answer.status
    assert "a bug &lt;b&gt;" in answer.body
    assert ["page_view_failed"] == [event.name for event in page.events]


@pytest.mark.parametrize(
    "message",
    [
        b"GET /./ /evil?token=%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        (
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Token: %s\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nno size\r\n"
        ),
    ],
)
def test_a_malformed_request_is_refused_and_not_logged(
    page: ServedPage, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
        connection.sendall(message % TOKEN.encode())
        status = connection.recv(4096).split(b"\r\n")[0]

    assert b" 400 " in status
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not page.events


def test_a_compressed_form_is_refused_and_never_expanded(page: ServedPage) -> None:
    """A megabyte that expands to a gigabyte would hold up the event loop for seconds."""
    answer = page.post("/programs/web/stop", "this would not expand", Content_Encoding="gzip")

    assert 415 == answer.status


def test_a_live_path_that_is_no_address_is_not_found(page: ServedPage) -> None:
    assert 404 == page.get("/live?path=//[").status


def test_a_supervisor_that_did_not_answer_is_asked_by_one_caller_at_a_time(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get what is known at once, and nobody asks it for workers or usage."""
    asked, release, asking = [], threading.Event(), threading.Event()

    def request(_: Path, command: str, *__: object, **___: object) -> dict[str, object]:
        asked.append(command)
        if len(asked) > 1:
            asking.set()
            release.wait(60)
        raise TryAgainError("no answer")

    monkeypatch.setattr(control, "request", request)
    source = ControlSource(state)
    assert "no answer" == source.status().error
    assert not source.workers()
    assert not source.usage(["a"])
    assert ["status"] == asked

    source.forget()
    caller = threading.Thread(target=source.status, daemon=True)
    caller.start()
    assert asking.wait(60)
    assert "no answer" == source.status().error
    assert not release.is_set()
    release.set()
    caller.join(60)


def test_files_whose_names_are_not_utf_8_do_not_hide_the_others(
    state: Path, page: ServedPage
) -> None:
    for folder, name in (("logs", b"\xff.log"), ("crashes", b"\xff")):
        (state / folder / os.fsdecode(name)).write_text("x")
    (state / "logs" / "web.log").write_text("x")
    (state / "crashes" / "web-20260101T000000-1-a").write_text("x")

    assert "/logs/web" in page.get("/logs").body
    assert "/stacks/web-" in page.get("/workers").body


# --- live ---


def open_stream(page: ServedPage, path: str) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", page.port), timeout=30)
    stream.sendall(
        f"GET /live?path={path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    return stream


def read_until(stream: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        chunk = stream.recv(65536)
        assert chunk, data[-300:]
        data += chunk
    return data


def test_a_stream_sends_the_sections_and_then_what_changes(
    state: Path, page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "POLL_INTERVAL", 0.05)
    with open_stream(page, "/logs/web") as missing:
        assert read_until(missing, b"event: state")
    (state / "logs" / "web.log").write_text("first line\n")
    with open_stream(page, "/logs/web") as stream:
        head = read_until(stream, b"first line")
        assert b"200 OK" in head
        assert b"text/event-stream" in head
        with (state / "logs" / "web.log").open("a") as log:
            log.write("second line\n")
        assert b"event: sections" in read_until(stream, b"second line")


def test_a_client_that_does_not_read_is_disconnected_and_others_are_served(
    state: Path, page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_streams, "SEND_TIMEOUT", 0.2)
    monkeypatch.setattr(live, "POLL_INTERVAL", 0.05)
    log = state / "logs" / "web.log"
    log.write_text("first line\n" + "x" * 4000 + "\n")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", page.port))
    slow.sendall(
        f"GET /live?path=/logs/web HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    assert eventually(lambda: 1 == page.clients())
    number = 0

    def is_dropped() -> bool:
        nonlocal number
        number += 1
        log.write_text(f"{number}\n" + "\n".join([f"{number} " + "x" * 4000] * 100))
        return 0 == page.clients()

    assert eventually(is_dropped)
    assert 200 == page.get("/logs/web").status
    slow.close()


def test_a_stream_that_the_browser_closes_frees_its_place_at_once(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nothing is sent, which would fail: else reloads use up the places of others."""
    monkeypatch.setattr(live, "PING_INTERVAL", 1000.0)
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as stream:
        stream.sendall(
            f"GET /live?path=/programs HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        received = b""
        while b"event: sections" not in received:
            received += stream.recv(4096)
        assert 1 == page.clients()

    assert eventually(lambda: page.clients() == 0)


def test_the_server_stops_with_open_streams(state: Path) -> None:
    with served_page(state) as page:
        streams = [open_stream(page, "/") for _ in range(5)]
        for stream in streams:
            read_until(stream, b"event: sections")
    for stream in streams:
        while stream.recv(65536):
            pass
        stream.close()
