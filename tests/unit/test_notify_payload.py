"""Payloads of NOTIFY: which channels they name, and how long they may be."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.store.notify.listener import Received
from longwatch.store.postgres.notify_payload import (
    MAX_PAYLOAD_BYTES,
    MAX_PAYLOADS,
    decode_payloads,
    encode_payloads,
    for_all_receivers,
)

ME, OTHER = "0" * 12, "1" * 12
names = st.text(st.characters(blacklist_characters="\n\t", codec="utf-8"), min_size=1)


@given(st.sets(names))
def test_another_process_reads_the_channels_and_the_sender_none(channels: set[str]) -> None:
    payloads = encode_payloads(OTHER, channels)
    assert Received(channels, set()) == decode_payloads(ME, payloads)
    assert Received(set(), set()) == decode_payloads(OTHER, payloads)


@given(st.sets(names), st.sets(names))
def test_channels_for_all_receivers_are_told_apart(some: set[str], every: set[str]) -> None:
    payloads = encode_payloads(OTHER, some | for_all_receivers(every))
    assert Received(some, every) == decode_payloads(ME, payloads)


def test_every_name_that_a_graph_may_have_is_told_apart() -> None:
    """The version of a graph is any printable text."""
    channels = {f"flow/pages/1{mark}" for mark in string.punctuation}
    payloads = encode_payloads(OTHER, channels)
    assert Received(channels, set()) == decode_payloads(ME, payloads)


def test_few_channels_share_one_payload() -> None:
    assert [f"{ME}/a\nb\nc"] == encode_payloads(ME, ["c", "a", "b"])


@pytest.mark.parametrize("count", [1, 77, 78, 79, 200, 312, 313, 10_000])
def test_no_payload_is_too_long_and_too_many_channels_become_all(count: int) -> None:
    channels = {f"{number:0100}" for number in range(count)}
    payloads = encode_payloads(OTHER, channels)
    assert all(len(each.encode()) <= MAX_PAYLOAD_BYTES for each in payloads)
    assert len(payloads) <= MAX_PAYLOADS
    assert (channels if count <= 312 else None) == decode_payloads(ME, payloads).hinted


def test_a_channel_that_fits_in_no_payload_notifies_all() -> None:
    payloads = encode_payloads(OTHER, ["a", "ü" * MAX_PAYLOAD_BYTES])
    assert ([f"{OTHER}/"], None) == (payloads, decode_payloads(ME, payloads).hinted)


@pytest.mark.parametrize("text", ["", "end", "hello 000000000000"])
def test_a_text_that_is_no_payload_is_ignored(text: str) -> None:
    assert Received({"a"}, set()) == decode_payloads(ME, [text, f"{OTHER}/a"])
