"""Messages that kill their process: each is given up by itself, and everything else goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longwatch.mailbox import Mailbox
from polling import eventually
from worker_process import (
    is_drained,
    opened_mailbox,
    start_worker,
    store_url,
    write_app,
)

MORE = """
def die(context, job):
    os.kill(os.getpid(), signal.SIGKILL)

def leave(context, job):
    os._exit(job["code"])
"""
MESSAGES = 1000
POISONS = (100, 350, 600, 850)
MINUTES = 180.0


def short_messages(count: int, poisons: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "do": "die" if number in poisons else "done"} for number in range(count)
    ]


def is_over(mailbox: Mailbox[Any], dead: int) -> bool:
    return mailbox.stats().dead == dead and is_drained(mailbox)


def test_four_poisons_in_a_thousand_messages_are_given_up_and_the_worker_goes_on(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """996 are done, four are dead letters for `poison`, no other message is, and the breaker has
    not tripped.
    """
    write_app(tmp_path, MORE)
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        start_worker(longwatch_bin, tmp_path, "--processes", "2", env={"SLOTS": "4"}) as run,
    ):
        run.joined_pids("worker-1", "worker-2")
        mailbox.send_many(short_messages(MESSAGES, POISONS))
        assert eventually(lambda: is_over(mailbox, len(POISONS)), MINUTES), mailbox.stats()
        dead = mailbox.backend.dead_letters()
        mailbox.send({"id": "after", "do": "done"})
        run.notes.wait_for("end", "after")
        run.stop_cleanly()
    done = {note.job for note in run.notes.all("end")}
    assert {"poison"} == {letter.reason for letter in dead}
    assert {str(number) for number in range(MESSAGES) if number not in POISONS} | {"after"} == done
    assert [] == run.events("circuit_breaker_tripped")
    assert {3} == {letter.crashes for letter in dead}
