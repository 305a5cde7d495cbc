"""taskiq on Redis: the stream broker acknowledges, the list broker takes at most once. No batch
send: a hundred at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from taskiq_redis import ListQueueBroker, RedisStreamBroker

import client
import marks

URL = os.environ["BENCH_URL"]
broker = (
    ListQueueBroker(
        URL, socket_timeout=None
    )  # or its blocking pop times out, and its worker starts anew, after 5 s without work
    if os.environ.get("BENCH_BROKER") == "list"
    else RedisStreamBroker(URL, consumer_id="0")
)


@broker.task(task_name="noop")
async def noop(sent: float) -> None:
    marks.mark(sent)


async def send_many(moments: Sequence[float]) -> None:
    await asyncio.gather(*(noop.kiq(sent) for sent in moments))


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(broker.startup())
        client.send(
            lambda sent: runner.run(noop.kiq(sent)), lambda moments: runner.run(send_many(moments))
        )
        runner.run(broker.shutdown())
