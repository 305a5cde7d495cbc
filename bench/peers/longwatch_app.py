"""Longwatch on SQLite: `work` drains through the engine with 8 slots, `receive` by receive and acknowledge_many from one thread."""

from __future__ import annotations

import os
import sys
import threading

import client
import marks
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.runner import MessageRunner
from longwatch.work.engine import Engine, EnginePolicy

mailbox = open_mailbox(f"sqlite:///{os.environ['BENCH_STORE']}", "bench", float)


def work() -> None:
    runner = MessageRunner(mailbox, lambda message, _context: marks.mark(message.body))
    with Engine(mailbox.backend, runner, policy=EnginePolicy(slots=8)):
        threading.Event().wait()


def receive() -> None:
    while True:
        messages = mailbox.receive(max_messages=100, wait_time_seconds=20)
        for message in messages:
            marks.mark(message.body)
        mailbox.acknowledge_many(messages)


if __name__ == "__main__":
    if sys.argv[1] in {"work", "receive"}:
        {"work": work, "receive": receive}[sys.argv[1]]()
    client.send(mailbox.send, mailbox.send_many)
