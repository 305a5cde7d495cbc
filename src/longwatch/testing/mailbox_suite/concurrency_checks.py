"""Checks that many threads or processes on one mailbox settle every message exactly once, also if a
process is killed while it holds a message.

A child process is a new interpreter that opens the mailbox with `reopen`, which must be picklable.
It does one of the tasks below and prints its result, one JSON value on each line.
"""

from __future__ import annotations

import base64
import json
import pickle
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from longwatch.errors import MailboxClosedError
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message, SettleResult
from longwatch.testing.mailbox_suite.harness import (
    FOREVER,
    TIMEOUT,
    MailboxFactory,
    MailboxHarness,
    await_thread,
    bodies,
    expect,
    expect_equal,
    receive_one,
    start_thread,
)

SENDERS, RECEIVERS, EACH = 4, 4, 60
TOTAL = SENDERS * EACH

SENT = 100
_CHILD = (
    "import sys; sys.path[:] = {path!r}; from longwatch.testing.mailbox_suite.concurrency_checks "
    "import run_child; run_child()"
)


class SettledCounter:
    """Counts the settled messages, and closes the mailbox when all are settled."""

    def __init__(self, mailbox: Mailbox[Any]) -> None:
        self.settled: Counter[Any] = Counter()
        self._mailbox = mailbox
        self._lock = threading.Lock()

    def count(self, message: Message[Any]) -> None:
        with self._lock:
            self.settled[message.body] += 1
            if len(self.settled) == TOTAL:
                self._mailbox.close()


def threads_that_send_and_receive_settle_every_message_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    receiving = harness.open(mailbox.name)
    counter = SettledCounter(receiving)
    crowd = [start_thread(_sender(mailbox, number)) for number in range(SENDERS)]
    crowd += [start_thread(_receiver(receiving, counter, number)) for number in range(RECEIVERS)]
    for thread in crowd:
        await_thread(thread, "threads that send and receive come to an end")
    expect_equal({1}, set(counter.settled.values()), "no message is settled twice")
    expect_equal(TOTAL, len(counter.settled), "no message is lost")
    expect_equal(
        (0, 0),
        (mailbox.approximate_count(), len(mailbox.dead_letters)),
        "no message and no dead letter is left",
    )


def one_of_several_settlements_of_a_delivery_succeeds(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    other = harness.open(mailbox.name)
    mailbox.send_many(range(EACH))
    messages = mailbox.receive(max_messages=EACH, visibility_timeout=FOREVER)
    verdicts: list[list[SettleResult]] = []

    def settle(handle: Mailbox[Any]) -> None:
        verdicts.append(handle.acknowledge_many(messages))

    crowd = [start_thread(partial(settle, handle)) for handle in (mailbox, other, mailbox, other)]
    for thread in crowd:
        await_thread(thread, "threads that settle come to an end")
    won = [verdict.count(SettleResult.SETTLED) for verdict in zip(*verdicts, strict=True)]
    expect_equal([1] * EACH, won, "of several settlements of one delivery exactly one succeeds")


def a_key_sent_by_many_at_once_is_stored_once(harness: MailboxHarness) -> None:
    mailbox = harness.open()
    ids: list[str] = []
    crowd = [
        start_thread(lambda: ids.append(mailbox.send("once", dedupe_key="k")))
        for _ in range(SENDERS * 2)
    ]
    for thread in crowd:
        await_thread(thread, "threads that send come to an end")
    expect_equal(1, len(set(ids)), "all senders with one key get one id")
    expect_equal(1, mailbox.approximate_count(), "one message is stored for one key")


def _sender(mailbox: Mailbox[Any], number: int) -> Callable[[], None]:
    """Return a function that sends half of the messages one by one and half in batches."""

    def send() -> None:
        bodies = [f"{number}-{each}" for each in range(EACH)]
        for body in bodies[: EACH // 2]:
            mailbox.send(body)
        for start in range(EACH // 2, EACH, 10):
            mailbox.send_many(bodies[start : start + 10])

    return send


def _receiver(mailbox: Mailbox[Any], counter: SettledCounter, number: int) -> Callable[[], None]:
    """Return a function that releases some messages and acknowledges the others."""

    def receive() -> None:
        while not mailbox.closed:
            messages = _nack_some(
                mailbox.receive(max_messages=1 + 3 * number, wait_time_seconds=FOREVER)
            )
            if number % 2:
                expect_equal(
                    {SettleResult.SETTLED},
                    {*mailbox.acknowledge_many(messages), SettleResult.SETTLED},
                    "the receiver of a message may settle it",
                )
            for message in messages:
                if not message.is_finalized:
                    message.acknowledge()
                counter.count(message)

    def ends_with_the_mailbox() -> None:
        with suppress(MailboxClosedError):
            receive()

    return ends_with_the_mailbox


def _nack_some(messages: list[Message[Any]]) -> list[Message[Any]]:
    """Release every third message of a first delivery. Return the others."""
    for message in messages:
        if message.delivery_count == 1 and int(message.id, 16) % 3 == 0:
            message.nack()
    return [message for message in messages if not message.is_finalized]


def processes_that_send_and_receive_settle_every_message_once(harness: MailboxHarness) -> None:
    if harness.reopen is None:
        return
    mailbox = harness.open()
    with (
        _child(harness, mailbox, settle_all) as first,
        _child(harness, mailbox, settle_all) as second,
        _child(harness, mailbox, partial(send_numbers, start=0)) as low,
        _child(harness, mailbox, partial(send_numbers, start=SENT)) as high,
    ):
        _done(low)
        _done(high)
        settled = [number for child in (first, second) for number in _done(child)]
    expect_equal(
        list(range(2 * SENT)),
        sorted(settled),
        "processes settle every message once and lose none",
    )
    expect_equal(
        (0, 0),
        (mailbox.approximate_count(), len(mailbox.dead_letters)),
        "no message and no dead letter is left",
    )


def a_message_wakes_a_receiver_in_another_process(harness: MailboxHarness) -> None:
    if harness.reopen is None:
        return
    mailbox = harness.open()
    with _child(harness, mailbox, wait_for_one) as child:
        _line(child)
        mailbox.send("across")
        expect_equal("across", _line(child), "a receiver in another process gets the message")


def a_pause_holds_in_every_process(harness: MailboxHarness) -> None:
    if harness.reopen is None:
        return
    mailbox = harness.open()
    mailbox.send("kept")
    with _child(harness, mailbox, pause_it) as child:
        _done(child)
    expect_equal([], mailbox.receive(), "a pause by another process holds in this one")
    mailbox.resume()
    expect_equal("kept", receive_one(mailbox).body, "this process can end the pause of another")


def the_message_of_a_killed_process_is_found_at_once_and_its_crash_counted(
    harness: MailboxHarness,
) -> None:
    if harness.reopen is None:
        return
    mailbox = harness.open()
    mailbox.send("held")
    with _child(harness, mailbox, hold_one) as child:
        expect_equal("held", _line(child), "the other process holds the message")
        expect_equal(
            [], mailbox.receive(wait_time_seconds=0.6), "the lease of a live process holds"
        )
        child.kill()
        child.wait(TIMEOUT)
        again = receive_one(
            mailbox,
            "a dead owner is found within a second, long before its lease ends",
            wait_time_seconds=1.0,
        )
    expect_equal(2, again.delivery_count, "it is delivered again")
    again.nack()
    [delivery] = mailbox.backend.peek(limit=1)
    expect_equal(
        (1, 0),
        (delivery.crashes, delivery.failures),
        "the end of the process counts as a crash of the message it held",
    )


def killed_three_times_a_message_is_poison(harness: MailboxHarness) -> None:
    if harness.reopen is None:
        return
    mailbox = harness.open()
    mailbox.send("poison")
    for _ in range(3):
        with _child(harness, mailbox, hold_one) as child:
            expect_equal("poison", _line(child), "the other process holds the message")
            child.kill()
            child.wait(TIMEOUT)
        mailbox.backend.sweep()
    expect_equal([], mailbox.receive(), "a message that killed three processes is not received")
    expect_equal(
        ["poison"],
        [dead_letter.reason for dead_letter in mailbox.dead_letters],
        "it is a dead letter",
    )


# --- tasks of child processes ---


def send_numbers(mailbox: Mailbox[Any], *, start: int) -> None:
    for number in range(start, start + SENT // 2):
        mailbox.send(number)
    mailbox.send_many(range(start + SENT // 2, start + SENT))


def settle_all(mailbox: Mailbox[Any]) -> None:
    """Settle messages and print them, until the parent has closed the input and none is left."""
    last = False
    while not last:
        closed = bool(select.select([sys.stdin], [], [], 0)[0])
        messages = mailbox.receive(max_messages=7, wait_time_seconds=0.2)
        mailbox.acknowledge_many(messages)
        for body in bodies(messages):
            _print(body)
        last = closed and not messages


def wait_for_one(mailbox: Mailbox[Any]) -> None:
    _print("ready")
    _print(receive_one(mailbox, wait_time_seconds=TIMEOUT).body)


def pause_it(mailbox: Mailbox[Any]) -> None:
    mailbox.pause()


def hold_one(mailbox: Mailbox[Any]) -> None:
    """Lease a message for a long time, and wait to be killed."""
    _print(receive_one(mailbox, visibility_timeout=FOREVER, wait_time_seconds=TIMEOUT).body)
    sys.stdin.read()


def run_child() -> None:
    """Run the task of a child process, which the first line of its input names."""
    reopen, name, task = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301 - written by the parent
    task(reopen(name))


@contextmanager
def _child(
    harness: MailboxHarness, mailbox: Mailbox[Any], task: Callable[[Mailbox[Any]], None]
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that runs the task, and kill it at the end if it still runs."""
    order: tuple[MailboxFactory | None, str, Any] = (harness.reopen, mailbox.name, task)
    command = [sys.executable, "-c", _CHILD.format(path=sys.path)]
    with subprocess.Popen(  # noqa: S603 - runs this interpreter
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdin is not None
            child.stdin.write(base64.b64encode(pickle.dumps(order)).decode() + "\n")
            child.stdin.flush()
            yield child
        finally:
            child.kill()


def _done(child: subprocess.Popen[str]) -> list[Any]:
    """Return all values that a child printed. Its exit code must be 0."""
    out, _ = child.communicate(timeout=TIMEOUT)
    expect_equal(0, child.returncode, "a process that works with the mailbox exits with 0")
    return [json.loads(line) for line in out.splitlines()]


def _line(child: subprocess.Popen[str]) -> Any:
    assert child.stdout is not None
    line = child.stdout.readline()
    expect(line, "a process that works with the mailbox prints its result")
    return json.loads(line)


def _print(value: Any) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201 - a child reports on stdout


CHECKS = (
    threads_that_send_and_receive_settle_every_message_once,
    one_of_several_settlements_of_a_delivery_succeeds,
    a_key_sent_by_many_at_once_is_stored_once,
    processes_that_send_and_receive_settle_every_message_once,
    a_message_wakes_a_receiver_in_another_process,
    a_pause_holds_in_every_process,
    the_message_of_a_killed_process_is_found_at_once_and_its_crash_counted,
    killed_three_times_a_message_is_poison,
)
