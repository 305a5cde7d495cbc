"""Encodes and decodes the bytes that the backend and its scripts exchange.

`lua/messages.lua` describes the layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from longwatch.engine.claim_source import ClaimedRow, GivenUp, RowOutcome, Settlement
from longwatch.mailbox.headers import decode_headers
from longwatch.mailbox.records import DeadLetter, MessageRecord, NewMessage
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim

_HEAD = Struct(">dddBHIH")
_TAIL = Struct(">BHIH")
_NEW_MESSAGE = Struct(">ddIBHIH")
_COUNTERS = Struct(">IIIII")
_NO_COUNTERS = bytes(_COUNTERS.size)
_LEASE = Struct(">d")
_CLAIMED_HEAD = Struct(">IId")
_DEAD_LETTER = Struct(">dIIIIIBII")
_KEEP_EXPIRED, _HAS_KEY = 1, 2

NUMBER_BITS = 44
"""Bits of a row's number within its mailbox. The bits above, up to bit 63, are the mailbox's
number.
"""
_NUMBER_MASK = (1 << NUMBER_BITS) - 1
COUNTER_BY_BLAME = {
    Blame.CRASH: "crashes",
    Blame.LOST: "lost",
    Blame.RELEASE: "releases",
    Blame.FAILURE: "failures",
}
_COUNTER_BY_OUTCOME = {
    RowOutcome.DONE: None,
    RowOutcome.DEAD: "dead",
    RowOutcome.FAILED: "failures",
    RowOutcome.CRASHED: "crashes",
    RowOutcome.RELEASED: "releases",
}


def number_of(seq: int) -> int:
    """Return the number of a row within its mailbox."""
    return seq & _NUMBER_MASK


def seq_of(queue: int, number: int) -> int:
    """Return the number of a row in the store."""
    return queue << NUMBER_BITS | number


# --- on the way in ---


@dataclass(slots=True)
class RedisOwner:
    """An owner of leases, and the mailboxes in which it has claimed."""

    incarnation: str = ""
    page: str | None = None
    parent: str | None = None
    renew_seconds: float | None = None
    is_draining: bool = False
    mailboxes: set[str] = field(default_factory=set)

    @property
    def record(self) -> dict[str, Any]:
        """The owner in the form that `register_owner` of `lua/keys.lua` takes."""
        return {
            "incarnation": self.incarnation,
            "page": self.page,
            "parent": self.parent,
            "renew_seconds": self.renew_seconds,
            "is_draining": self.is_draining,
        }


def pack_messages(messages: Iterable[NewMessage]) -> bytes:
    """Encode messages for `put.lua`: rows without their numbers and times, which the server
    assigns.
    """
    return b"".join(part for message in messages for part in _pack_message(message))


def _pack_message(message: NewMessage) -> tuple[bytes, ...]:
    name, reply_to = message.id.encode(), _pack_reply(message)
    key = b"" if message.dedupe_key is None else message.dedupe_key.encode("utf-8", "surrogatepass")
    flags = (_KEEP_EXPIRED if message.keep_expired else 0) | (
        _HAS_KEY if message.dedupe_key is not None else 0
    )
    size = _TAIL.size + len(name) + len(key) + len(reply_to) + len(message.body)
    head = _NEW_MESSAGE.pack(
        message.delay, message.expires_in or 0.0, size, flags, len(name), len(key), len(reply_to)
    )
    return head, name, key, reply_to, message.body


def _pack_reply(message: NewMessage) -> bytes:
    """Encode the name for the reply and the headers, which the scripts copy as one text."""
    reply_to = b"" if message.reply_to is None else message.reply_to.encode()
    return reply_to if message.headers is None else b"%b\0%b" % (reply_to, message.headers.encode())


def pack_settlement(settlement: Settlement, owner: int) -> tuple[Any, ...]:
    """Encode one settlement for `exchange.lua`."""
    claim, outcome = settlement.claim, settlement.outcome
    if outcome is RowOutcome.DONE and claim.owner == owner:
        return claim.seq & _NUMBER_MASK, claim.term
    return (
        claim.seq & _NUMBER_MASK,
        claim.term,
        _COUNTER_BY_OUTCOME[outcome],
        str(claim.owner),
        settlement.delay,
        settlement.reason,
        _storable_text(settlement.error),
        _storable_text(settlement.traceback),
    )


def _storable_text(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


# --- on the way out ---


def unpack_claimed(
    response: bytes, *, owner: int, queue: int, is_exclusive: bool, max_failures: int
) -> list[ClaimedRow]:
    """Decode the rows that an exchange leased."""
    rows, position, end, first_seq = list[ClaimedRow](), 0, len(response), queue << NUMBER_BITS
    while position < end:
        size, counters_size, term = _CLAIMED_HEAD.unpack_from(response, position)
        start = position + _CLAIMED_HEAD.size
        position = start + size + counters_size
        number, enqueued_at, _, _, name, key, reply = _HEAD.unpack_from(response, start)
        text = start + _HEAD.size
        rest = text + name + key
        deliveries, failures, crashes, lost, releases = (
            _COUNTERS.unpack_from(response, start + size) if counters_size else (0, 0, 0, 0, 0)
        )
        reply_to, headers = _unpack_reply(response[rest : rest + reply]) if reply else (None, None)
        record = MessageRecord(
            response[text : text + name].decode(),
            response[rest + reply : start + size],
            deliveries + 1,
            failures,
            crashes,
            enqueued_at,
            reply_to,
            lost,
            releases,
            headers,
        )
        claim = Claim(first_seq | int(number), owner, int(term))
        rows.append(ClaimedRow(claim, record, is_exclusive, None, None, max_failures - failures))
    return rows


def unpack_given_up(mailbox: str, response: Sequence[bytes]) -> list[GivenUp]:
    """Decode the messages that a script dead-lettered: ids and reasons, in turn."""
    return [
        GivenUp(message_id.decode(), mailbox, reason.decode())
        for message_id, reason in zip(response[::2], response[1::2], strict=True)
    ]


def unpack_records(response: Sequence[bytes]) -> list[MessageRecord]:
    """Decode rows and counters, in turn, as records, oldest first."""
    pairs = sorted(
        zip(response[::2], response[1::2], strict=True),
        key=lambda pair: _HEAD.unpack_from(pair[0])[0],
    )
    return [_unpack_record(row, counters) for row, counters in pairs]


def unpack_dead_letter(mailbox: str, packed: bytes) -> DeadLetter:
    died_at, deliveries, failures, crashes, lost, releases, reason, error, traceback = (
        _DEAD_LETTER.unpack_from(packed)
    )
    text = _DEAD_LETTER.size + reason
    middle = text + max(error - 1, 0)
    row = middle + max(traceback - 1, 0)
    record = _unpack_record(packed[row:], b"")
    return DeadLetter(
        id=record.id,
        mailbox=mailbox,
        reason=packed[_DEAD_LETTER.size : text].decode(),
        error=packed[text:middle].decode(errors="replace") if error else None,
        died_at=died_at,
        enqueued_at=record.enqueued_at,
        deliveries=deliveries,
        failures=failures,
        crashes=crashes,
        releases=releases,
        reply_to=record.reply_to,
        body=record.body,
        lost=lost,
        headers=decode_headers(record.headers),
        traceback=packed[middle:row].decode(errors="replace") if traceback else None,
    )


def unpack_claims(response: Sequence[bytes], *, owner: int, queue: int) -> Iterable[Claim]:
    """Decode numbers and leases, in turn, as claims."""
    for number, lease in zip(response[::2], response[1::2], strict=True):
        yield Claim(seq_of(queue, int(number)), owner, int(_LEASE.unpack_from(lease)[0]))


def _unpack_record(row: bytes, counters: bytes) -> MessageRecord:
    _, enqueued_at, _, _, name, key, reply = _HEAD.unpack_from(row)
    text = _HEAD.size
    rest = text + name + key
    deliveries, failures, crashes, lost, releases = _COUNTERS.unpack(counters or _NO_COUNTERS)
    reply_to, headers = _unpack_reply(row[rest : rest + reply]) if reply else (None, None)
    return MessageRecord(
        row[text : text + name].decode(),
        row[rest + reply :],
        deliveries,
        failures,
        crashes,
        enqueued_at,
        reply_to,
        lost,
        releases,
        headers,
    )


def _unpack_reply(packed: bytes) -> tuple[str | None, str | None]:
    """Decode the name for the reply and the headers."""
    reply_to, _, headers = packed.decode().partition("\0")
    return reply_to or None, headers or None
