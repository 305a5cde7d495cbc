from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.supervisor.notify_socket import MAX_EXTENSION, Notice

PID = 77


def parsed(datagram: bytes) -> Notice | None:
    return Notice.parse(datagram, pid=PID)


@pytest.mark.parametrize(
    ("datagram", "notice"),
    [
        (b"READY=1", Notice(pid=PID, ready=True)),
        (b"READY=1\n", Notice(pid=PID, ready=True)),
        (b"STOPPING=1", Notice(pid=PID, stopping=True)),
        (b"WATCHDOG=1", Notice(pid=PID, beat=True)),
        (b"WATCHDOG=trigger", Notice(pid=PID, trigger=True)),
        (b"STATUS=warming up", Notice(pid=PID, status="warming up")),
        (b"STATUS=", Notice(pid=PID, status="")),
        (b"STATUS=a=b", Notice(pid=PID, status="a=b")),
        (b"EXTEND_TIMEOUT_USEC=1500000", Notice(pid=PID, extend_seconds=1.5)),
        (b"READY=1\nSTATUS=up\nWATCHDOG=1\n", Notice(pid=PID, ready=True, status="up", beat=True)),
        (b"MAINPID=1\nREADY=1\nX_MINE=2\nFDSTORE=1", Notice(pid=PID, ready=True)),
        (b"STATUS=first\nSTATUS=last", Notice(pid=PID, status="last")),
        (b"READY=1\nnonsense\n=\n\x00\xff", Notice(pid=PID, ready=True)),
    ],
)
def test_what_is_known_is_taken_from_a_datagram_and_the_rest_passed_over(
    datagram: bytes, notice: Notice
) -> None:
    assert notice == parsed(datagram)


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\n",
        b"READY",
        b"READY=0",
        b"READY=yes",
        b"ready=1",
        b" READY=1",
        b"READY=1 ",
        b"WATCHDOG=0",
        b"STOPPING=",
        b"MAINPID=12",
        b"RELOADING=1\nMONOTONIC_USEC=5",
        b"BARRIER=1",
        b"FDSTORE=1",
        b"\xff\xfe",
        b"EXTEND_TIMEOUT_USEC=soon",
        b"READY=1\r\n",
    ],
)
def test_a_datagram_that_says_nothing_we_know_is_none(datagram: bytes) -> None:
    assert None is parsed(datagram)


@pytest.mark.parametrize(
    ("microseconds", "seconds"),
    [
        ("1", 1e-6),
        ("30000000", 30.0),
        (str(2**64 - 1), MAX_EXTENSION),
        ("86400000001", MAX_EXTENSION),
        ("0", None),
        ("", None),
        ("-5", None),
        ("+5", None),
        ("1.5", None),
        ("1e9", None),
        ("٣", None),
        ("²", None),
        ("9" * 4000, None),
    ],
)
def test_an_extension_is_a_whole_number_of_microseconds_of_a_day_at_the_most(
    microseconds: str, seconds: float | None
) -> None:
    notice = parsed(f"WATCHDOG=1\nEXTEND_TIMEOUT_USEC={microseconds}".encode())
    assert Notice(pid=PID, beat=True, extend_seconds=seconds) == notice


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"  spaced \t", "spaced"),
        (b"red \x1b[31malert\x07", r"red \x1b[31malert\x07"),
        (b"one\rtwo", r"one\rtwo"),
        (b"bad \xff byte", "bad � byte"),
        ("Füße 漢字".encode(), "Füße 漢字"),
        ("hidden\u202etxt".encode(), r"hidden\u202etxt"),
        (b"login postgres://bob:hunter2@db/x", "login postgres://***@db/x"),
        (b"x" * 4000, "x" * 199 + "…"),
        (b"x" * 200, "x" * 200),
        (b"\x00" * 400, r"\x00" * 49 + r"\x0" + "…"),
    ],
)
def test_a_status_is_shown_as_one_bounded_printable_line_without_secrets(
    said: bytes, shown: str
) -> None:
    assert Notice(pid=PID, status=shown) == parsed(b"STATUS=" + said)


@given(noise=st.binary(max_size=300))
def test_whatever_is_sent_nothing_raises_and_a_status_can_be_printed(noise: bytes) -> None:
    for datagram in (noise, b"STATUS=" + noise, b"EXTEND_TIMEOUT_USEC=" + noise):
        notice = parsed(datagram)
        status = "" if notice is None else notice.status or ""
        assert status.isprintable()
        assert 200 >= len(status)
