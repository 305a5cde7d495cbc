"""persist-queue's SQLiteAckQueue: a get and an ack per job."""

from __future__ import annotations

import os
import sys

from persistqueue import SQLiteAckQueue

import client
import marks

queue = SQLiteAckQueue(
    os.environ["BENCH_URL"].removeprefix("sqlite:///") + ".d", auto_commit=True, multithreading=True
)

if __name__ == "__main__":
    if sys.argv[1] == "work":
        while True:
            sent = queue.get()
            marks.mark(sent)
            queue.ack(sent)
    client.send(queue.put)
