"""A runner's intake that is killed: `intake_client.py URL TOTAL` takes the streams of three sources
from where they were stored, until each has TOTAL events.

Like a server, a stream sends some events again before those that are new.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence

from intake_rig import IntakeRig, item
from longwatch.errors import StoreError
from longwatch.runner.policy import RunnerPolicy
from longwatch.runner.seams import StreamItem
from longwatch.store.url import open_database

SOURCES = ("eu", "us", "asia")
QUEUE_SIZE = 150
MAX_BATCH = 20
SENT_AGAIN = 5


def stream(total: int) -> list[StreamItem]:
    """The events of a stream: some mild, some of a fault that was there, some broken."""
    sent = []
    for n in range(total):
        match n % 10:
            case 3:
                sent.append(item(n, severity="debug"))
            case 6:
                sent.append(item(n, fault=f"f{n - 1}"))
            case 9:
                sent.append(StreamItem(f"{{broken {n}", str(n)))
            case _:
                sent.append(item(n))
    return sent


async def feed(rig: IntakeRig, source: str, sent: Sequence[StreamItem]) -> None:
    dice = random.Random()
    cursor = await rig.intake.cursor(source)
    position = int(cursor) + 1 if cursor else 0
    while position < len(sent):
        end = min(position + dice.randint(1, MAX_BATCH), len(sent))
        batch = sent[max(position - dice.randint(0, SENT_AGAIN), 0) : end]
        await rig.intake.take(source, batch, cursor=str(batch[-1].id))
        position = end


async def feed_all(rig: IntakeRig, total: int) -> None:
    await asyncio.gather(*(feed(rig, source, stream(total)) for source in SOURCES))


def main(url: str, total: str) -> None:
    database = open_database(url)
    assert database is not None
    rig = IntakeRig(database, *SOURCES, policy=RunnerPolicy(source_queue_size=QUEUE_SIZE))
    rig.intake.leases.renew()
    try:
        asyncio.run(feed_all(rig, int(total)))
    except StoreError as error:
        sys.exit(f"{error}")
    rig.intake.leases.release()


if __name__ == "__main__":
    main(*sys.argv[1:])
