"""Commits of an application that sends inside its own transactions, on twelve connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fleet_bench.figure import Figure
from fleet_bench.fleet import Fleet, mailbox_member, migrate
from fleet_bench.site import Site

CONNECTIONS = 12
_TABLE = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text)"


def measure_commits(site: Site) -> list[Figure]:
    return _measure(site, "as the disk is")


def measure_slow_commits(site: Site) -> list[Figure]:
    """The server of this part waits 5 ms more for every `fdatasync`."""
    return _measure(site, "a disk with 5 ms")


def _measure(site: Site, disk: str) -> list[Figure]:
    """Beside one idle worker, which listens to another mailbox of the same database."""
    import psycopg  # noqa: PLC0415 - beside the tree's own imports

    from longwatch.mailbox import open_mailbox  # noqa: PLC0415

    migrate(site.url)
    with Fleet(mailbox_member(site.url), site.path) as fleet:
        fleet.grow(1)
        with psycopg.connect(site.url, autocommit=True) as connection:
            connection.execute(_TABLE)
        mailbox = open_mailbox(site.url, "orders")
        mailbox.approximate_count()

        def order(connection: psycopg.Connection) -> None:
            connection.execute("INSERT INTO orders (item) VALUES ('tea')")

        def order_and_send(connection: psycopg.Connection) -> None:
            order(connection)
            mailbox.send({"item": "tea"}, tx=connection)

        plain = _commits_per_second(site, order)
        sending = _commits_per_second(site, order_and_send)
    return [
        Figure(f"commits a second, {disk}", plain, 0),
        Figure(f"commits a second with a send each, {disk}", sending, 0),
        Figure(f"ratio, {disk}", sending / plain, 2),
    ]


def _commits_per_second(site: Site, work: Callable[..., object]) -> float:
    import psycopg  # noqa: PLC0415

    counts = [0] * CONNECTIONS
    stop = threading.Event()

    def run(place: int) -> None:
        with psycopg.connect(site.url) as connection:
            while not stop.is_set():
                work(connection)
                connection.commit()
                counts[place] += 1

    threads = [threading.Thread(target=run, args=(place,)) for place in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began, before = time.monotonic(), sum(counts)
    time.sleep(site.seconds / 2)
    rate = (sum(counts) - before) / (time.monotonic() - began)
    stop.set()
    for thread in threads:
        thread.join()
    return rate
