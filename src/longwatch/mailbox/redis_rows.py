"""What crosses the wire between the backend and its scripts, in bytes. The layouts are told in
`lua/rows.lua`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any

from longwatch.mailbox.letters import DeadLetter, Delivery, Letter
from longwatch.store.claims import Blame, Claim
from longwatch.work.source import Leased, Outcome, Settlement

_HEAD = Struct(">dddBHIH")
_TAIL = Struct(">BHIH")
_LETTER = Struct(">ddIBHIH")
_PAST = Struct(">IIIIdB")
_LEASE = Struct(">d")
_ENTRY = Struct(">IId")
_DEATH = Struct(">dIIIIBI")
_KEEP, _KEYED = 1, 2

NUMBER_BITS = 44
"""A row's number within its mailbox; the bits above are the mailbox's own number, up to 63 bits
in all.
"""
_NUMBER = (1 << NUMBER_BITS) - 1
COUNTERS = {Blame.CRASH: "crashes", Blame.RELEASE: "releases", Blame.FAILURE: "failures"}
_OUTCOMES = {
    Outcome.DONE: None,
    Outcome.DEAD: "dead",
    Outcome.FAILED: "failures",
    Outcome.BACK: "releases",
}


def number_of(seq: int) -> int:
    """The number of a row within its mailbox."""
    return seq & _NUMBER


def seq_of(lane: int, number: int) -> int:
    """The number of a row in the store."""
    return lane << NUMBER_BITS | number


# --- on the way in ---


def packed_letters(letters: Iterable[Letter]) -> bytes:
    """Messages as `put.lua` takes them: rows but for their numbers and times, which the server
    gives.
    """
    return b"".join(part for letter in letters for part in _letter(letter))


def _letter(letter: Letter) -> tuple[bytes, ...]:
    name, reply_to = (
        letter.id.encode(),
        b"" if letter.reply_to is None else letter.reply_to.encode(),
    )
    key = b"" if letter.dedupe_key is None else letter.dedupe_key.encode("utf-8", "surrogatepass")
    marks = (_KEEP if letter.keep_expired else 0) | (_KEYED if letter.dedupe_key is not None else 0)
    size = _TAIL.size + len(name) + len(key) + len(reply_to) + len(letter.body)
    before = _LETTER.pack(
        letter.delay, letter.expires_in or 0.0, size, marks, len(name), len(key), len(reply_to)
    )
    return before, name, key, reply_to, letter.body


def settlement_row(settlement: Settlement, owner: int) -> tuple[Any, ...]:
    """One settlement as `exchange.lua` takes it."""
    claim, outcome = settlement.claim, settlement.outcome
    if outcome is Outcome.DONE and claim.owner == owner:
        return claim.seq & _NUMBER, claim.term
    error = (
        None
        if settlement.error is None
        else settlement.error.encode("utf-8", "backslashreplace").decode()
    )
    return (
        claim.seq & _NUMBER,
        claim.term,
        _OUTCOMES[outcome],
        str(claim.owner),
        settlement.delay,
        settlement.reason,
        error,
    )


# --- on the way out ---


def leased_rows(answer: bytes, *, owner: int, lane: int) -> list[Leased]:
    """The rows that an exchange leased."""
    return list(_leased_rows(answer, owner, lane << NUMBER_BITS))


def _leased_rows(answer: bytes, owner: int, lane: int) -> Iterator[Leased]:
    place, end = 0, len(answer)
    while place < end:
        size, past_size, term = _ENTRY.unpack_from(answer, place)
        start = place + _ENTRY.size
        place = start + size + past_size
        number, enqueued_at, _, _, name, key, reply = _HEAD.unpack_from(answer, start)
        text = start + _HEAD.size
        rest = text + name + key
        deliveries, failures, crashes = (
            _PAST.unpack_from(answer, start + size)[:3] if past_size else (0, 0, 0)
        )
        delivery = Delivery(
            answer[text : text + name].decode(),
            answer[rest + reply : start + size],
            deliveries + 1,
            failures,
            crashes,
            enqueued_at,
            answer[rest : rest + reply].decode() if reply else None,
        )
        yield Leased(Claim(lane | int(number), owner, int(term)), delivery, crashes > 0)


def deliveries_in_order(answer: Sequence[bytes]) -> list[Delivery]:
    """Rows and pasts, in turn, as deliveries that were not made, oldest first."""
    pairs = sorted(
        zip(answer[::2], answer[1::2], strict=True), key=lambda pair: _HEAD.unpack_from(pair[0])[0]
    )
    return [_delivery(row, past) for row, past in pairs]


def dead_letter(mailbox: str, packed: bytes) -> DeadLetter:
    died_at, deliveries, failures, crashes, releases, reason, error = _DEATH.unpack_from(packed)
    text = _DEATH.size + reason
    row = text + max(error - 1, 0)
    delivery = _delivery(packed[row:], b"")
    return DeadLetter(
        id=delivery.id,
        mailbox=mailbox,
        reason=packed[_DEATH.size : text].decode(),
        error=packed[text:row].decode(errors="replace") if error else None,
        died_at=died_at,
        enqueued_at=delivery.enqueued_at,
        deliveries=deliveries,
        failures=failures,
        crashes=crashes,
        releases=releases,
        reply_to=delivery.reply_to,
        body=delivery.body,
    )


def held_claims(answer: Sequence[bytes], *, owner: int, lane: int) -> Iterable[Claim]:
    """Numbers and leases, in turn, as claims."""
    for number, lease in zip(answer[::2], answer[1::2], strict=True):
        yield Claim(seq_of(lane, int(number)), owner, int(_LEASE.unpack_from(lease)[0]))


def _delivery(row: bytes, past: bytes) -> Delivery:
    _, enqueued_at, _, _, name, key, reply = _HEAD.unpack_from(row)
    text = _HEAD.size
    rest = text + name + key
    deliveries, failures, crashes = _PAST.unpack_from(past)[:3] if past else (0, 0, 0)
    reply_to = row[rest : rest + reply].decode() if reply else None
    return Delivery(
        row[text : text + name].decode(),
        row[rest + reply :],
        deliveries,
        failures,
        crashes,
        enqueued_at,
        reply_to,
    )
