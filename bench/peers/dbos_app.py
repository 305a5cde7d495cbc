"""DBOS on SQLite and PostgreSQL: a durable workflow of no steps, enqueued, with its default
polling.
"""

from __future__ import annotations

import os
import sys
import time

from dbos import DBOS, DBOSClient

import client
import marks

URL = os.environ["BENCH_URL"]


@DBOS.workflow(name="noop")
def noop(sent: float) -> None:
    marks.mark(sent)


def launch() -> None:
    names = {"name": "bench", "application_version": "1", "executor_id": "one"}
    DBOS(config={**names, "system_database_url": URL, "log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue("q", polling_interval_sec=1.0)


def send() -> None:
    sender = DBOSClient(system_database_url=URL)
    wanted = {"queue_name": "q", "workflow_name": "noop", "app_version": "1"}

    def left() -> int:
        open_ones = sender.list_workflows(
            status=["ENQUEUED", "PENDING"], limit=1, load_input=False, load_output=False
        )
        return len(open_ones)

    client.send(lambda sent: sender.enqueue(wanted, sent), left=left)
    sender.destroy()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        launch()
        while True:
            time.sleep(3600)
    if sys.argv[1] == "batch":
        launch()  # makes the schema
        DBOS.destroy()
    send()
