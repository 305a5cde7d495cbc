"""Payloads of NOTIFY: which channels they name, and how long they may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("psycopg")

from longwatch.store.postgres.notify_payload import (
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOADS,
    decode_payloads,
    encode_payloads,
)

ME, OTHER = "0" * 12, "1" * 12
names = st.text(st.characters(blacklist_characters="\n", codec="utf-8"), min_size=1)


@given(st.sets(names))
def test_another_process_reads_the_channels_and_the_sender_none(channels: set[str]) -> None:
    payloads = encode_payloads(OTHER, channels)
    assert channels == decode_payloads(ME, payloads)
    assert set() == decode_payloads(OTHER, payloads)


def test_few_channels_share_one_payload() -> None:
    assert [f"{ME}/a\nb\nc"] == encode_payloads(ME, ["c", "a", "b"])


@pytest.mark.parametrize("count", [1, 77, 78, 79, 200, 312, 313, 10_000])
def test_no_payload_is_too_long_and_too_many_channels_become_all(count: int) -> None:
    channels = {f"{number:0100}" for number in range(count)}
    payloads = encode_payloads(OTHER, channels)
    assert all(len(each.encode()) <= MAX_PAYLOAD_BYTES for each in payloads)
    assert len(payloads) <= MAX_PAYLOADS
    assert (channels if count <= 312 else None) == decode_payloads(ME, payloads)


def test_a_channel_that_fits_in_no_payload_notifies_all() -> None:
    payloads = encode_payloads(OTHER, ["a", "ü" * MAX_PAYLOAD_BYTES])
    assert ([f"{OTHER}/"], None) == (payloads, decode_payloads(ME, payloads))


@pytest.mark.parametrize("text", ["", "end", "hello 000000000000"])
def test_a_text_that_is_no_payload_is_ignored(text: str) -> None:
    assert {"a"} == decode_payloads(ME, [text, f"{OTHER}/a"])
