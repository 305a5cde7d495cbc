"""Longwatch on any store: `work` drains through the engine with 8 slots, `receive` by receive and
acknowledge_many from one thread, `group` through a LoopGroup with everything on: heartbeats,
watchdog, health port, metrics.

`alone` does everything in one process, for the store that is in memory: a verb a line, an answer a
line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import client
import marks
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.message_runner import MessageRunner

CHUNK = 1000

mailbox = open_mailbox(os.environ["BENCH_URL"], "bench", float)


def work() -> None:
    runner = MessageRunner(mailbox, lambda message, _context: marks.mark(message.body))
    with Engine(mailbox.backend, runner, policy=EnginePolicy(slots=8)):
        threading.Event().wait()


def group() -> None:
    from longwatch.observe import Metrics  # noqa: PLC0415 - only who measures it pays
    from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext  # noqa: PLC0415

    class Marking(MainLoop[float, None]):
        def handle(self, request: float, context: MainLoopContext) -> None:
            del context
            marks.mark(request)

    LoopGroup(
        [Marking(requests=mailbox, concurrency=8)],
        health_port=0,
        health_host="127.0.0.1",
        metrics=Metrics(),
    ).run()


def receive() -> None:
    while True:
        messages = mailbox.receive(max_messages=100, wait_time_seconds=20)
        for message in messages:
            marks.mark(message.body)
        mailbox.acknowledge_many(messages)


def singles(total: str) -> None:
    for _ in range(int(total)):
        mailbox.send(1.0)


def alone() -> None:
    for line in sys.stdin:
        print(_run_verb(*line.split()), flush=True)


def _run_verb(verb: str, *numbers: str) -> float:
    match verb:
        case "batch":
            return client.batch(int(numbers[0]), mailbox.send, mailbox.send_many, CHUNK)
        case "light":
            client.light(float(numbers[0]), float(numbers[1]), mailbox.send)
        case "settled":
            return client.settled(int(numbers[0]), mailbox.approximate_count)
        case _:
            threading.Thread(target=VERBS[verb], daemon=True).start()
    return 0.0


VERBS: dict[str, Callable[..., None]] = {
    "work": work,
    "receive": receive,
    "group": group,
    "singles": singles,
    "alone": alone,
    "pause": mailbox.pause,
    "resume": mailbox.resume,
}

if __name__ == "__main__":
    if sys.argv[1] in VERBS:
        VERBS[sys.argv[1]](*sys.argv[2:])
    else:
        client.send(mailbox.send, mailbox.send_many, chunk=CHUNK, left=mailbox.approximate_count)
