"""huey on SQLite, at most once: a job that was taken and not finished is lost."""

from __future__ import annotations

import os

from huey import SqliteHuey

import client
import marks

huey = SqliteHuey("bench", filename=os.environ["BENCH_STORE"], results=False)


@huey.task()
def noop(sent: float) -> None:
    marks.mark(sent)


if __name__ == "__main__":
    import huey_app

    client.send(huey_app.noop)
