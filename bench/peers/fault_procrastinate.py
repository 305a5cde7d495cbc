"""Procrastinate whose server fails: `fault_procrastinate.py ROLE URL JOURNAL NUMBER`, as
tests/fault_client.py.
"""

from __future__ import annotations

import asyncio
import sys

from procrastinate import App, PsycopgConnector

from fault_journal import Journal

role, url, path, number = sys.argv[1:]
journal = Journal(path)
app = App(connector=PsycopgConnector(conninfo=url))


@app.task(name="job")  # type: ignore[untyped-decorator]  # its package is installed only for the benchmarks
async def job(n: int) -> None:
    await journal.handle(n)


async def main() -> None:
    async with app.open_async():
        if role == "install":
            await app.schema_manager.apply_schema_async()
        elif role == "work":
            await app.run_worker_async(
                concurrency=8, delete_jobs="always", install_signal_handlers=False
            )
        else:
            await journal.produce(lambda n: job.defer_async(n=n), int(number))


asyncio.run(main())
