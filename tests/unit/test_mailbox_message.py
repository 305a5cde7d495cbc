from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
    StoreBusyError,
)
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import Mailbox, Message, SettleResult
from longwatch.mailbox.memory import MemoryBackend, MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mailbox(store: MemoryStore) -> Mailbox[Any]:
    return Mailbox("work", store.backend("work"))


@pytest.fixture
def message(mailbox: Mailbox[Any]) -> Message[Any]:
    mailbox.send({"n": 1})
    [received] = mailbox.receive()
    return received


def test_a_message_shows_what_was_sent_and_when(mailbox: Mailbox[Any], store: MemoryStore) -> None:
    store.jump.wall = 1_000_000_000.0 - store.wall_now()
    sent = mailbox.send("work", reply_to="answers")
    [message] = mailbox.receive()
    assert (sent, "work", 1, "answers") == (
        message.id,
        message.body,
        message.delivery_count,
        message.reply_to,
    )
    assert datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC) == message.enqueued_at.replace(microsecond=0)


def test_acknowledging_finalizes(mailbox: Mailbox[Any], message: Message[Any]) -> None:
    message.acknowledge()
    assert (True, 0) == (message.is_finalized, mailbox.approximate_count())


@pytest.mark.parametrize("call", ["acknowledge", "nack", "extend", "reply"])
def test_a_finalized_message_refuses_everything(message: Message[Any], call: str) -> None:
    message.nack()
    calls: dict[str, Callable[[], object]] = {
        "acknowledge": message.acknowledge,
        "nack": message.nack,
        "extend": lambda: message.extend_visibility(1),
        "reply": lambda: message.reply("x"),
    }
    with pytest.raises(MessageFinalizedError, match=message.id):
        calls[call]()


def test_a_stale_receipt_is_refused_with_the_cure(
    mailbox: Mailbox[Any], message: Message[Any], store: MemoryStore
) -> None:
    store.jump.lease += 301
    [again] = mailbox.receive()
    with pytest.raises(ReceiptHandleExpiredError, match="longer visibility_timeout"):
        message.acknowledge()
    assert (False, 2) == (message.is_finalized, again.delivery_count)


def test_a_nack_without_a_reason_is_nobodys_fault_and_with_one_a_failure(
    mailbox: Mailbox[Any], message: Message[Any]
) -> None:
    message.nack()
    [again] = mailbox.receive()
    again.nack(reason="ValueError: no")
    [delivery] = mailbox.backend.peek(limit=1)
    assert (2, 1, 0) == (delivery.deliveries, delivery.failures, delivery.crashes)


def test_there_is_no_reply_without_a_place(message: Message[Any]) -> None:
    with pytest.raises(ReplyNotAvailableError, match="reply_to="):
        message.reply("x")


def test_there_is_no_reply_where_names_lead_nowhere(mailbox: Mailbox[Any]) -> None:
    mailbox.send(1, reply_to="answers")
    [message] = mailbox.receive()
    with pytest.raises(ReplyNotAvailableError):
        message.reply("x")


def test_verdicts_are_the_words_of_the_contract(
    mailbox: Mailbox[Any], message: Message[Any]
) -> None:
    assert ["settled"] == mailbox.acknowledge_many([message])
    assert [SettleResult.EXPIRED] == mailbox.acknowledge_many([message])


class PassingClock(FakeClock):
    """A clock on which every wait takes its time, also for the store, and is remembered."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.store = store
        self.waits: list[float] = []

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(round(timeout, 6))
        self.store.jump.wall += timeout
        self.advance(timeout)
        return False


def test_a_waiting_receive_looks_again_when_a_delayed_message_is_due(store: MemoryStore) -> None:
    clock = PassingClock(store)
    mailbox: Mailbox[str] = Mailbox("work", store.backend("work"), clock=clock)
    mailbox.send("later", delay_seconds=0.3)
    assert ["later"] == [message.body for message in mailbox.receive(wait_time_seconds=60)]
    assert sum(clock.waits) < 0.31


def test_a_waiting_receive_looks_every_half_second_and_ends_in_time(store: MemoryStore) -> None:
    clock = PassingClock(store)
    mailbox: Mailbox[str] = Mailbox("work", store.backend("work"), clock=clock)
    assert [] == mailbox.receive(wait_time_seconds=1.2)
    assert [0.5, 0.5, 0.2] == clock.waits


class UnreachableBackend(MemoryBackend):
    """A store that goes away once `is_gone` is set."""

    is_gone = False

    def __getattribute__(self, name: str) -> Any:
        if object.__getattribute__(self, "__class__").is_gone and name in CALLS:
            raise StoreBusyError("the store is locked; try again")
        return super().__getattribute__(name)


CALLS = {
    "register_owner",
    "exchange",
    "sweep",
    "listen",
    "put",
    "settle",
    "renew_one",
    "stats",
    "cancel",
    "pause",
    "purge",
    "dead_letters",
    "find_dead_letter",
}
CALLS |= {"replay", "drop"}

USES: dict[str, Callable[[Mailbox[Any], Message[Any]], object]] = {
    "send": lambda mailbox, _: mailbox.send(1),
    "receive": lambda mailbox, _: mailbox.receive(),
    "stats": lambda mailbox, _: mailbox.stats(),
    "approximate_count": lambda mailbox, _: mailbox.approximate_count(),
    "cancel": lambda mailbox, _: mailbox.cancel("x"),
    "pause": lambda mailbox, _: mailbox.pause(),
    "resume": lambda mailbox, _: mailbox.resume(),
    "purge": lambda mailbox, _: mailbox.purge(),
    "acknowledge_many": lambda mailbox, message: mailbox.acknowledge_many([message]),
    "acknowledge": lambda _, message: message.acknowledge(),
    "nack": lambda _, message: message.nack(),
    "extend": lambda _, message: message.extend_visibility(1),
    "dead": lambda mailbox, _: list(mailbox.dead_letters),
    "len dead": lambda mailbox, _: len(mailbox.dead_letters),
    "show": lambda mailbox, _: mailbox.dead_letters.show("x"),
    "replay": lambda mailbox, _: mailbox.dead_letters.replay("x"),
    "drop": lambda mailbox, _: mailbox.dead_letters.drop("x"),
    "replay_all": lambda mailbox, _: mailbox.dead_letters.replay_all(),
    "drop_all": lambda mailbox, _: mailbox.dead_letters.drop_all(),
}


@pytest.mark.parametrize("use", USES)
def test_errors_of_the_store_are_connection_errors_to_the_user(
    store: MemoryStore, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox: Mailbox[Any] = Mailbox("work", UnreachableBackend(store, "work"))
    mailbox.send(1)
    [message] = mailbox.receive()
    monkeypatch.setattr(UnreachableBackend, "is_gone", True)
    with pytest.raises(MailboxConnectionError, match="locked") as raised:
        USES[use](mailbox, message)
    assert isinstance(raised.value.__cause__, StoreBusyError)
    monkeypatch.setattr(UnreachableBackend, "is_gone", False)
    assert not message.is_finalized


class AlwaysDeadBackend(MemoryBackend):
    """Whatever is replayed dies again at once, as in a worker that cannot read it."""

    def replay(self, ids: Sequence[str]) -> list[bool]:
        replayed = super().replay(ids)
        kill(self)
        return replayed


def kill(backend: MemoryBackend) -> None:
    leased = backend.exchange(
        (), owner=backend.register_owner(Incarnation.current()), limit=1000, lease_seconds=60
    ).claimed
    backend.settle(
        [Settlement(claim=each.claim, outcome=RowOutcome.DEAD, reason="failed") for each in leased]
    )


def test_replaying_all_ends_though_they_die_again(store: MemoryStore) -> None:
    backend = AlwaysDeadBackend(store, "work")
    mailbox: Mailbox[int] = Mailbox("work", backend)
    mailbox.send_many(range(250))
    kill(backend)
    assert 250 == mailbox.dead_letters.replay_all()
    assert 250 == len(mailbox.dead_letters)


def test_every_dead_letter_is_listed_once_though_some_are_dropped_meanwhile(
    store: MemoryStore,
) -> None:
    backend = store.backend("work")
    mailbox: Mailbox[int] = Mailbox("work", backend)
    ids = mailbox.send_many(range(250))
    kill(backend)
    seen = []
    for number, letter in enumerate(mailbox.dead_letters):
        seen.append(letter.id)
        if number % 100 == 99:
            mailbox.dead_letters.drop(letter.id)
    assert ids == seen


def test_a_rejected_message_goes_to_the_dead_letters_with_its_history(
    mailbox: Mailbox[Any], message: Message[Any]
) -> None:
    message.reject("no such customer")
    [letter] = mailbox.dead_letters
    assert (message.id, "permanent", "no such customer", 1) == (
        letter.id,
        letter.reason,
        letter.error,
        letter.deliveries,
    )
    assert (True, 0) == (message.is_finalized, mailbox.approximate_count())


def test_a_message_tells_its_failures_apart_from_its_deliveries(
    mailbox: Mailbox[Any], message: Message[Any]
) -> None:
    message.nack()
    [again] = mailbox.receive()
    again.nack(reason="ValueError: no")
    [third] = mailbox.receive()
    assert (3, 1) == (third.delivery_count, third.failures)


def test_leaving_a_with_block_closes_the_mailbox(mailbox: Mailbox[Any]) -> None:
    with mailbox as opened:
        assert not opened.closed
    assert mailbox.closed


def test_mailbox_and_message_show_what_they_are(
    mailbox: Mailbox[Any], message: Message[Any]
) -> None:
    assert ("<Mailbox 'work'>", f"<Message {message.id} of 'work', delivery 1>") == (
        repr(mailbox),
        repr(message),
    )


Act = Callable[[Mailbox[Any]], object]
UNFIT: dict[str, tuple[Act, str]] = {
    "send": (lambda mailbox: mailbox.send(1, dedupe_key=b"k"), "dedupe_key must be text"),  # type: ignore[arg-type]
    "send_many": (
        lambda mailbox: mailbox.send_many([1, 2], dedupe_keys=["a", "\ud800"]),
        "dedupe_key must be text",
    ),
    "reply_to": (
        lambda mailbox: mailbox.send(1, reply_to=5),  # type: ignore[arg-type]
        "reply_to must be a Mailbox or the name of a mailbox, not of type int",
    ),
    "cancel": (lambda mailbox: mailbox.cancel("\ud800"), "message_id must be text"),
    "show": (lambda mailbox: mailbox.dead_letters.show(5), "message_id must be text"),  # type: ignore[arg-type]
    "replay": (lambda mailbox: mailbox.dead_letters.replay("a", "\0"), "message_id must be text"),
    "drop": (lambda mailbox: mailbox.dead_letters.drop(["a"]), "message_id must be text"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("act", "told"), UNFIT.values(), ids=UNFIT)
def test_what_no_store_could_take_is_refused_with_the_bound_and_nothing_is_done(
    mailbox: Mailbox[Any], act: Act, told: str
) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{told}"):
        act(mailbox)
    assert 0 == mailbox.approximate_count()


def test_a_reason_is_kept_in_a_form_that_every_store_takes(
    mailbox: Mailbox[Any], message: Message[Any]
) -> None:
    message.reject("half \ud800 and \0" + "z" * 20_000)
    [letter] = mailbox.dead_letters
    assert "half \\ud800 and \\x00".ljust(10_000, "z") == letter.error


@pytest.mark.parametrize("settle", ["nack", "reject"])
def test_a_reason_that_is_no_text_is_refused_and_the_message_stays_leased(
    message: Message[Any], settle: str
) -> None:
    with pytest.raises(InvalidParameterError, match=r"^reason must be text"):
        getattr(message, settle)(reason=b"x")
    message.acknowledge()
