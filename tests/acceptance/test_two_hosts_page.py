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


def wait_until_joined(host: Host) -> None:
    """Wait until both processes of its first worker work."""
    assert eventually(lambda: host.log.count('"event":"worker_joined"') >= 2), host.log


def replies(done: Mailbox[Any]) -> dict[int, dict[str, Any]]:
    """The reply to each film; every film has one at most."""
    found = [json.loads(each.body)["output"] for each in done.backend.peek(limit=10 * SENT)]
    assert [1] * len(found) == [*Counter(each["film"] for each in found).values()]
    return {each["film"]: each for each in found}


def test_a_host_that_dies_loses_no_film_and_none_is_answered_twice(
    hosts: tuple[Host, Host], mailboxes: tuple[Mailbox[Any], Mailbox[Any]]
) -> None:
    """The last four films are long: `alpha` dies while it works on one of them."""
    alpha, beta = hosts
    jobs, done = mailboxes
    start_worker(alpha)
    start_worker(beta)
    send, *look = lines("The workers")[1:]
    assert f"seq {SENT}" in send
    alpha.run(send)
    assert eventually(lambda: len(replies(done)) == SENT)
    for line, word in zip(look, ("done", '"host":'), strict=True):
        assert word in beta.run(line)
    films = range(1001, 1005)
    jobs.send_many([{"film": film, "scenes": 15} for film in films])
    assert eventually(lambda: any(f"cutting film {film}" in alpha.log for film in films))
    alpha.power_off()
    assert eventually(lambda: len(replies(done)) == SENT + 4, 60), beta.log[-4000:]
    late = [replies(done)[film] for film in films]
    assert {"beta"} == {reply["host"] for reply in late}
    assert any(reply["attempt"] > 1 for reply in late)
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
        wait_until_joined(host)
        assert 0 == host.stop()
        start_worker(host)
    assert eventually(lambda: len(replies(done)) == 16)
    assert (0, 0) == (jobs.approximate_count(), len(jobs.dead_letters))


def test_a_worker_refuses_a_store_that_was_not_migrated(hosts: tuple[Host, Host]) -> None:
    start_worker(hosts[0])
    assert 100 == hosts[0].wait()
    unit = ROOT / "deploy" / "systemd" / "longwatch-worker.service"
    assert "RestartPreventExitStatus=2 100" in unit.read_text(encoding="utf-8").splitlines()
