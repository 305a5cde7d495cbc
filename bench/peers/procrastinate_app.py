"""Procrastinate on PostgreSQL: 8 jobs at once on one loop, jobs removed when done."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from procrastinate import App, PsycopgConnector

import client
import marks

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_URL"]))


@app.task(name="noop")
async def noop(sent: float) -> None:
    marks.mark(sent)


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=8, delete_jobs="always")


async def send_many(moments: Sequence[float]) -> None:
    await noop.batch_defer_async(*({"sent": sent} for sent in moments))


async def count() -> int:
    row = await app.connector.execute_query_one_async(
        "SELECT count(*) AS jobs FROM procrastinate_jobs"
    )
    return int(row["jobs"])


async def install() -> None:
    row = await app.connector.execute_query_one_async(
        "SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS there"
    )
    if not row["there"]:
        await app.schema_manager.apply_schema_async()


def send(runner: asyncio.Runner) -> None:
    runner.run(app.open_async().__aenter__())
    runner.run(install())
    client.send(
        lambda sent: runner.run(noop.defer_async(sent=sent)),
        lambda moments: runner.run(send_many(moments)),
        chunk=1000,
        left=lambda: runner.run(count()),
    )
    runner.run(app.close_async())


if __name__ == "__main__":
    with asyncio.Runner() as shared:
        if sys.argv[1] == "work":
            shared.run(work())
        send(shared)
