"""The commands of docs/how-to/two-hosts.md, run on two hosts with one PostgreSQL."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import requires
from host_namespace import Host
from longwatch.mailbox import Mailbox, open_mailbox
from markdown_files import ROOT, Page, section
from polling import eventually
from postgres_server import shared_server
from up_process import unused_port

PAGE = Page.read(ROOT / "docs" / "how-to" / "two-hosts.md")
SENT = 10
BIN = Path(sys.executable).parent


def lines(title: str) -> list[str]:
    """The command lines below this heading."""
    text = section(PAGE, title)
    assert text is not None
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def only(title: str, start: str) -> str:
    [found] = [line for line in lines(title) if line.startswith(start)]
    return found


@pytest.fixture
def url() -> Iterator[str]:
    with shared_server().database() as made:
        yield made


@pytest.fixture
def hosts(url: str, tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    requires.require_tool("unshare")
    [app] = [block.text for block in PAGE.blocks if block.info[:1] == ("python",)]
    env = {"PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin:/sbin", "STORE_URL": url, "LONGWATCH_STORE": url}
    with ExitStack() as undo:
        made = []
        for name in ("alpha", "beta"):
            host = Host(name, tmp_path / name, env)
            (host.folder / "app.py").write_text(app)
            undo.callback(host.power_off)
            made.append(host)
        alpha, beta = made
        yield alpha, beta


@pytest.fixture
def mailboxes(url: str, hosts: tuple[Host, Host]) -> tuple[Mailbox[Any], Mailbox[Any]]:
    """`jobs` and `done`, once the tables were created as the page says."""
    for line in lines("The database"):
        hosts[0].run(line)
    return open_mailbox(url, "jobs"), open_mailbox(url, "done")


def start_worker(host: Host) -> None:
    """With a port of its own: the hosts of a test share one network."""
    line = only("The workers", "longwatch worker")
    assert "--health-port 8080" in line
    host.start(line.replace("8080", str(unused_port())))


def replies(done: Mailbox[Any]) -> dict[int, dict[str, Any]]:
    """The reply to each film; every film has one at most."""
    found = [json.loads(each.body)["output"] for each in done.backend.peek(limit=10 * SENT)]
    assert [1] * len(found) == [*Counter(each["film"] for each in found).values()]
    return {each["film"]: each for each in found}


def hosts_of(done: Mailbox[Any]) -> set[str]:
    return {each["host"] for each in replies(done).values()}


def test_a_host_that_dies_loses_no_film_and_none_is_answered_twice(
    hosts: tuple[Host, Host], mailboxes: tuple[Mailbox[Any], Mailbox[Any]]
) -> None:
    """The last four films are long, so that each process of both hosts has one in work."""
    alpha, beta = hosts
    jobs, done = mailboxes
    start_worker(alpha)
    start_worker(beta)
    send, *look = lines("The workers")[1:]
    assert f"seq {SENT}" in send
    alpha.run(send)
    jobs.send_many([{"film": SENT + n, "scenes": 10} for n in range(1, 5)])
    assert eventually(lambda: {"alpha", "beta"} == hosts_of(done))
    for line, word in zip(look, ("done", '"host":'), strict=True):
        assert word in beta.run(line)
    assert eventually(lambda: len(replies(done)) == SENT and jobs.stats().leased == 4)
    alpha.power_off()
    assert eventually(lambda: len(replies(done)) == SENT + 4, 60), beta.log[-4000:]
    late = [film for film, reply in replies(done).items() if reply["attempt"] > 1]
    assert (2, {"beta"}) == (len(late), {replies(done)[film]["host"] for film in late})
    [listing] = lines("When a host dies")
    _, *rows = (line.split() for line in beta.run(listing).splitlines())
    assert [["done", "14", "0", "0", "0"], ["jobs", "0", "0", "0", "0"]] == [
        row[:5] for row in rows
    ]
    assert (0, 0) == (len(jobs.dead_letters), len(done.dead_letters))


def test_hosts_are_upgraded_one_after_the_other_while_films_are_in_work(
    hosts: tuple[Host, Host], mailboxes: tuple[Mailbox[Any], Mailbox[Any]]
) -> None:
    jobs, done = mailboxes
    status = only("Upgrade one host after the other", "longwatch db status")
    assert [] == json.loads(hosts[0].run(status))["pending"]
    for host in hosts:
        start_worker(host)
    for number, host in enumerate(hosts):
        jobs.send_many([{"film": number * SENT + n, "scenes": 1} for n in range(8)])
        assert eventually(lambda: jobs.stats().leased > 0 or not jobs.stats().ready)
        assert 0 == host.stop()
        start_worker(host)
    assert eventually(lambda: len(replies(done)) == 16)
    assert {1} == {each["attempt"] for each in replies(done).values()}, "a stop lets films end"
