"""DBOS on SQLite: a durable workflow of no steps, enqueued, with its default polling."""

from __future__ import annotations

import os
import sys
import time

from dbos import DBOS, DBOSClient

import client
import marks

URL = f"sqlite:///{os.environ['BENCH_STORE']}"


@DBOS.workflow(name="noop")
def noop(sent: float) -> None:
    marks.mark(sent)


def launch() -> None:
    names = {"name": "bench", "application_version": "1", "executor_id": "one"}
    DBOS(config={**names, "system_database_url": URL, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("q", polling_interval_sec=1.0)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        launch()
        while True:
            time.sleep(3600)
    launch()  # makes the schema
    DBOS.destroy()
    sender = DBOSClient(system_database_url=URL)
    client.send(lambda sent: sender.enqueue({"queue_name": "q", "workflow_name": "noop", "app_version": "1"}, sent))
    sender.destroy()
