"""One figure of one of our backends, in a process of its own: `figures.py NAME URL …` prints it
as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from typing import Any

from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import Mailbox, open_mailbox

LEASES = 10_000


def single_sends(url: str) -> list[float]:
    """Messages a second by single `send`s from one thread and from eight."""
    mailbox = open_mailbox(url, "single")
    _send_some(mailbox, 50)
    return [_sends_by(mailbox, threads=1, each=1000), _sends_by(mailbox, threads=8, each=500)]


def claims_by_size(url: str) -> list[float]:
    """Median seconds for claiming and settling 100 messages, from a mailbox of 3,000 and from
    one of 1,000,000.
    """
    return [_claim_time(open_mailbox(url, f"of{size}"), size) for size in (3_000, 1_000_000)]


def renewals(url: str) -> float:
    """Seconds for renewing 10,000 leases of one owner, once; the median of three."""
    mailbox = open_mailbox(url, "renewed")
    owner = _claim_all(mailbox)
    return sorted(_renew_time(mailbox, owner) for _ in range(3))[1]


def claimed(url: str) -> int:
    """Take 10,000 leases and leave them; their owner."""
    return _claim_all(open_mailbox(url, "renewed"))


def renewed(url: str, owner: str) -> float:
    """Renew the leases that another process took."""
    return _renew_time(open_mailbox(url, "renewed"), int(owner))


def _send_some(mailbox: Mailbox[Any], count: int) -> None:
    for _ in range(count):
        mailbox.send(1.0)


def _sends_by(mailbox: Mailbox[Any], *, threads: int, each: int) -> float:
    senders = [threading.Thread(target=_send_some, args=(mailbox, each)) for _ in range(threads)]
    began = time.perf_counter()
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    return threads * each / (time.perf_counter() - began)


def _claim_time(mailbox: Mailbox[Any], size: int) -> float:
    for start in range(0, size, 10_000):
        mailbox.send_many([1.0] * min(10_000, size - start))
    time.sleep(5)  # what the server does about so many writes is not what is measured
    return statistics.median(_claim_once(mailbox) for _ in range(25))


def _claim_once(mailbox: Mailbox[Any]) -> float:
    began = time.perf_counter()
    mailbox.acknowledge_many(mailbox.receive(max_messages=100))
    return time.perf_counter() - began


def _claim_all(mailbox: Mailbox[Any]) -> int:
    mailbox.send_many([1.0] * LEASES)
    owner = mailbox.backend.register_owner(Incarnation.current())
    taken = sum(
        len(mailbox.backend.exchange((), owner=owner, limit=500, lease_seconds=600).claimed)
        for _ in range(LEASES // 500)
    )
    if taken != LEASES:
        sys.exit(f"only {taken} of {LEASES} could be claimed")
    return owner


def _renew_time(mailbox: Mailbox[Any], owner: int) -> float:
    mailbox.stats()  # the connection is there before the clock runs
    began = time.perf_counter()
    held = mailbox.backend.renew(owner=owner, lease_seconds=900)
    took = time.perf_counter() - began
    if held != LEASES:
        sys.exit(f"only {held} of {LEASES} were renewed")
    return took


FIGURES = {
    figure.__name__: figure for figure in (single_sends, claims_by_size, renewals, claimed, renewed)
}

if __name__ == "__main__":
    print(json.dumps(FIGURES[sys.argv[1]](*sys.argv[2:])))
