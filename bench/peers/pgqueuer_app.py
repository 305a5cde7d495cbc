"""PgQueuer on PostgreSQL: its documented worker over one asyncpg connection; done jobs are
logged and removed in batches.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

import client
import marks

URL = os.environ["BENCH_URL"]


async def work() -> None:
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @worker.entrypoint("noop")
    async def noop(job: Any) -> None:
        marks.mark(float(job.payload))

    await worker.run(batch_size=int(os.environ["BENCH_BATCH"]))


async def connect() -> tuple[Any, Queries]:
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    if not await queries.schema_is_installed():
        await queries.install()
    return connection, queries


def send(runner: asyncio.Runner) -> None:
    connection, queries = runner.run(connect())

    async def one(sent: float) -> None:
        await queries.enqueue("noop", str(sent).encode())

    async def many(moments: Sequence[float]) -> None:
        await queries.enqueue(
            ["noop"] * len(moments), [str(sent).encode() for sent in moments], [0] * len(moments)
        )

    def left() -> int:
        return int(runner.run(connection.fetchval("SELECT count(*) FROM pgqueuer")))

    client.send(
        lambda sent: runner.run(one(sent)),
        lambda moments: runner.run(many(moments)),
        chunk=1000,
        left=left,
    )


if __name__ == "__main__":
    with asyncio.Runner() as shared:
        if sys.argv[1] == "work":
            shared.run(work())
        send(shared)
