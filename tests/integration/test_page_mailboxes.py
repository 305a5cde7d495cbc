"""What the status page reads of mailboxes, on every kind of store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flow_stores import store_url
from longwatch.mailbox.url import mailbox_stats, open_mailbox, open_store
from longwatch.page.readers import mailboxes
from longwatch.page.readers.mailboxes import (
    drop_all_letters,
    drop_letters,
    read_letter,
    read_mailbox,
    read_mailboxes,
    replay_all_letters,
    replay_letters,
)
from longwatch.page.readers.texts import MAX_SHOWN_CHARS
from longwatch.page.view import NotFoundError
from page_rig import running_page
from page_stores import add_source, dead_letter
from redis_server import RedisServer

KINDS = ("sqlite", "postgresql", "redis")


@pytest.fixture(name="store", params=KINDS)
def store_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty store, of each kind."""
    if request.param == "redis":
        server = RedisServer(tmp_path)
        server.start()
        try:
            store = open_store(server.url)
            yield store
            store.close()
        finally:
            server.kill()
        return
    with store_url(request.param, tmp_path) as url, open_store(url, auto_migrate=True) as database:
        yield database


def test_mailboxes_are_sorted_by_trouble(store: Any) -> None:
    open_mailbox(store, "calm").send({"n": 1})
    open_mailbox(store, "empty").stats()
    dead_letter(open_mailbox(store, "troubled").backend, b"1")
    found = read_mailboxes(store)
    assert ["troubled", "calm"] == [each.name for each in found][:2]
    assert (0, 1) == (found[0].ready, found[0].dead)
    assert found[1].oldest_at is not None


def test_the_counts_are_those_of_each_mailbox(store: Any) -> None:
    for name in ("a", "b", "c"):
        mailbox = open_mailbox(store, name)
        mailbox.send(1)
        mailbox.send(2, delay_seconds=1000)
        dead_letter(mailbox.backend, b"3")
        mailbox.receive()
    open_mailbox(store, "b").pause()
    expected = {name: open_mailbox(store, name).stats() for name in ("a", "b", "c")}
    found = dict(mailbox_stats(store))
    assert list(expected) == list(found)
    for name, stats in expected.items():
        assert stats._replace(oldest_age=None) == found[name]._replace(oldest_age=None)
        assert (stats.oldest_age is None) == (found[name].oldest_age is None)


def test_a_store_without_mailboxes_stays_empty(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/none.db") as database:
        assert [] == read_mailboxes(database)
        with pytest.raises(NotFoundError, match="there is no mailbox a"):
            read_mailbox(database, "a")
    assert [] == list(tmp_path.iterdir())


def test_dead_letters_come_in_pages(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "PAGE_SIZE", 3)
    monkeypatch.setattr(mailboxes, "_CHUNK", 2)
    backend = open_mailbox(store, "jobs").backend
    ids = [dead_letter(backend, b"%d" % number) for number in range(7)]
    seen, after, pages = [], 0, 0
    while True:
        page = read_mailbox(store, "jobs", after=after)
        seen += [each.id for each in page.letters]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert (ids, 3) == (seen, pages)


def test_waiting_messages_are_shown_without_a_claim(store: Any) -> None:
    mailbox = open_mailbox(store, "jobs")
    mailbox.send({"url": "http://x", "token": "abcdef"})
    [message] = read_mailbox(store, "jobs").waiting
    assert '{"url":"http://x","token":"***"}' == message.body.replace(": ", ":").replace(", ", ",")
    assert 1 == mailbox.stats().ready


def test_a_dead_letter_is_shown_with_its_secrets_masked(store: Any) -> None:
    body = {"user": "ada", "password": "hunter2", "list": ["postgresql://u:pw@h/db"]}
    backend = open_mailbox(store, "jobs").backend
    sent = dead_letter(
        backend,
        json.dumps(body).encode(),
        error="no: token=abc123",
        traceback="Traceback\n  File\nNo: no",
    )
    shown = read_letter(store, "jobs", sent)
    masked = {"user": "ada", "password": "***", "list": ["postgresql://***@h/db"]}
    assert masked == json.loads(shown.body.text)
    assert ("no: token=***", "rejected") == (shown.error.text, shown.letter.reason)
    assert shown.traceback is not None
    assert "Traceback\n  File\nNo: no" == shown.traceback.text


def test_a_long_body_is_cut_and_its_size_named(store: Any) -> None:
    body = b'"' + b"x" * 300_000 + b'"'
    sent = dead_letter(open_mailbox(store, "jobs").backend, body)
    shown = read_letter(store, "jobs", sent).body
    assert (MAX_SHOWN_CHARS, 300_002, True) == (len(shown.text), shown.size, shown.is_cut)


def test_a_body_that_is_no_json_is_escaped(store: Any) -> None:
    sent = dead_letter(open_mailbox(store, "jobs").backend, b"\xff<b>")
    shown = read_letter(store, "jobs", sent).body
    assert ("\\xff<b>", False) == (shown.text, shown.is_json)


def test_dead_letters_are_replayed_and_dropped(store: Any) -> None:
    mailbox = open_mailbox(store, "jobs")
    ids = [dead_letter(mailbox.backend, b"1") for _ in range(4)]
    assert 1 == replay_letters(store, "jobs", [ids[0]])
    assert 1 == drop_letters(store, "jobs", [ids[1], "gone"])
    assert (1, 2) == mailbox.stats()[0:4:3]
    assert 2 == replay_all_letters(store, "jobs")
    assert 0 == drop_all_letters(store, "jobs")
    assert (3, 0) == mailbox.stats()[0:4:3]


def test_what_does_not_exist_is_not_found(store: Any) -> None:
    open_mailbox(store, "jobs").send(1)
    with pytest.raises(NotFoundError, match="there is no mailbox job; did you mean"):
        read_mailbox(store, "job")
    with pytest.raises(NotFoundError, match="there is no dead letter gone in mailbox jobs"):
        read_letter(store, "jobs", "gone")


def test_zero_bytes_never_reach_a_store(tmp_path: Path) -> None:
    """PostgreSQL answers them with an error, and the page would say that the store is gone."""
    with store_url("postgresql", tmp_path) as url:
        with open_store(url, auto_migrate=True) as database:
            dead_letter(open_mailbox(database, "jobs").backend, b"1")
            add_source(database, "tickets")
        with running_page(url) as page:
            key = page.keys[0]
            for path, status in (
                (f"/mailboxes/{key}/jobs/dead/%00", 404),
                (f"/runner/{key}/runs/%00", 404),
                ("/runner?source=%00&before=%00", 200),
            ):
                assert status == page.served.get(path).status
            assert not page.served.data.stores.problems()
