"""dramatiq on Redis: acknowledged when done, messages one by one, as its API has it."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

import client
import marks

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_URL"]))


@dramatiq.actor
def noop(sent: float) -> None:
    marks.mark(sent)


if __name__ == "__main__":
    import dramatiq_app

    client.send(dramatiq_app.noop.send)
