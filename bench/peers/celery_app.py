"""Celery on Redis: acknowledged late, so that a killed worker loses nothing; no results kept."""

from __future__ import annotations

import os
from collections.abc import Sequence

from celery import Celery, group

import client
import marks

app = Celery("bench", broker=os.environ["BENCH_URL"])
app.conf.update(
    task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True
)


@app.task(name="noop")
def noop(sent: float) -> None:
    marks.mark(sent)


def send_many(moments: Sequence[float]) -> None:
    group(noop.s(sent) for sent in moments).apply_async()


if __name__ == "__main__":
    client.send(noop.delay, send_many)
