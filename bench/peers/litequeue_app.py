"""litequeue: pop and done, at synchronous=NORMAL, polling."""

from __future__ import annotations

import os
import sys
import time

from litequeue import LiteQueue

import client
import marks

queue = LiteQueue(os.environ["BENCH_URL"].removeprefix("sqlite:///"))

if __name__ == "__main__":
    if sys.argv[1] == "work":
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(0.02)
                continue
            marks.mark(float(message.data))
            queue.done(message.message_id)
    client.send(lambda sent: queue.put(str(sent)))
