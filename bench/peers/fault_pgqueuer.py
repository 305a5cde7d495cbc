"""PgQueuer whose server fails: `fault_pgqueuer.py ROLE URL JOURNAL NUMBER`, as
tests/fault_client.py.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

from fault_journal import Journal

role, url, path, number = sys.argv[1:]
journal = Journal(path)


async def work() -> None:
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @worker.entrypoint("job")  # type: ignore[untyped-decorator]  # its package is installed only for the benchmarks
    async def job(task: Any) -> None:
        await journal.handle(int(task.payload))

    await worker.run(batch_size=8)


async def produce() -> None:
    queries = Queries(AsyncpgPoolDriver(await asyncpg.create_pool(url, min_size=1)))
    await journal.produce(lambda n: queries.enqueue("job", str(n).encode()), int(number))


async def install() -> None:
    await Queries(AsyncpgDriver(await asyncpg.connect(url))).install()


asyncio.run({"work": work, "produce": produce, "install": install}[role]())
