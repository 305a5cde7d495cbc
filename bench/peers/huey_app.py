"""huey on SQLite and Redis, at most once: a job that was taken and not finished is lost."""

from __future__ import annotations

import os

from huey import RedisHuey, SqliteHuey

import client
import marks

URL = os.environ["BENCH_URL"]
huey = (
    RedisHuey("bench", url=URL, results=False)
    if URL.startswith("redis:")
    else SqliteHuey("bench", filename=URL.removeprefix("sqlite:///"), results=False)
)


@huey.task()
def noop(sent: float) -> None:
    marks.mark(sent)


if __name__ == "__main__":
    import huey_app

    client.send(huey_app.noop)
