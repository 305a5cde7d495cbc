from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaks import nothing_left_open
from longwatch.host.errand import Errand
from longwatch.host.sdnotify import LONGEST, Notifier
from longwatch.supervisor.notices import Notice
from snippet import running

PATIENCE = 10.0


class Ear:
    """Whoever listens: a datagram socket at an address."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        self._socket.bind(address)

    def hears(self) -> bytes:
        return self._socket.recv(65536)

    def notice(self) -> Notice | None:
        """As our own supervisor takes it."""
        return Notice.parse(self.hears(), pid=1)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def ear(path: str) -> Iterator[Ear]:
    opened = Ear(path)
    yield opened
    opened.close()


def test_each_thing_is_said_in_the_words_of_sd_notify(ear: Ear, path: str) -> None:
    notifier = Notifier(path)
    notifier.ready()
    notifier.ready("3 loops")
    notifier.beat()
    notifier.stalled("mail stalled for 65.2s")
    notifier.stopping()
    notifier.stopping("drained")
    assert [
        b"READY=1",
        b"READY=1\nSTATUS=3 loops",
        b"WATCHDOG=1",
        b"WATCHDOG=trigger\nSTATUS=mail stalled for 65.2s",
        b"STOPPING=1",
        b"STOPPING=1\nSTATUS=drained",
    ] == [ear.hears() for _ in range(6)]


def test_our_own_supervisor_understands_it(ear: Ear, path: str) -> None:
    Notifier(path).ready("up")
    Notifier(path).stalled("stuck")
    assert [
        Notice(pid=1, ready=True, status="up"),
        Notice(pid=1, trigger=True, status="stuck"),
    ] == [ear.notice(), ear.notice()]


def test_whether_it_was_said_is_told(ear: Ear, path: str) -> None:
    assert [True, False, False] == [
        Notifier(each).tell(READY="1") for each in (path, path + "-gone", "")
    ]


def test_an_address_with_an_at_sign_is_in_the_abstract_namespace() -> None:
    name = f"longwatch-test-{secrets.token_hex(8)}"
    ear = Ear("\0" + name)
    Notifier(f"@{name}").ready()
    assert b"READY=1" == ear.hears()
    ear.close()


def test_a_value_cannot_say_another_line(ear: Ear, path: str) -> None:
    Notifier(path).stalled("stuck\nREADY=1\r\nSTOPPING=1")
    assert b"WATCHDOG=trigger\nSTATUS=stuck READY=1 STOPPING=1" == ear.hears()


def test_a_long_status_is_cut_so_that_the_rest_is_heard(ear: Ear, path: str) -> None:
    Notifier(path).ready("é" * LONGEST)
    heard = ear.hears()
    assert (b"READY=1", LONGEST) == (heard.split(b"\n")[0], len(heard) + len(heard) % 2)
    assert {"é"} == set(heard.decode().partition("STATUS=")[2])


@given(status=st.text(st.characters()))
def test_no_text_is_one_that_cannot_be_said(status: str) -> None:
    name = f"longwatch-test-{secrets.token_hex(8)}"
    ear = Ear("\0" + name)
    Notifier(f"@{name}").stalled(status)
    assert b"WATCHDOG=trigger" == ear.hears().split(b"\n")[0]
    ear.close()


def test_a_listener_that_does_not_listen_holds_nobody_up(ear: Ear, path: str) -> None:
    said: list[bool] = []
    speaking = Errand(
        lambda: said.extend(Notifier(path).tell(WATCHDOG="1") for _ in range(1000)), name="test"
    )
    speaking.start()
    assert speaking.over.block(PATIENCE)
    assert [True, False] == [said[0], said[-1]]


@pytest.mark.parametrize(
    "address", ["/nowhere/notify", "relative", "/" + "x" * 200, "vsock:2:1234", "@"], ids=str
)
def test_an_address_where_nobody_listens_is_no_error(address: str) -> None:
    notifier = Notifier(address)
    for act in (notifier.ready, notifier.stopping, notifier.beat):
        act()
    notifier.stalled("stuck")
    assert notifier.is_heard


def test_without_an_address_nothing_is_said() -> None:
    notifier = Notifier.from_environment({})
    assert (False, None, False) == (
        notifier.is_heard,
        notifier.beat_within,
        notifier.tell(READY="1"),
    )


def test_speaking_leaves_no_descriptor_behind(ear: Ear, path: str) -> None:
    with nothing_left_open():
        for each in (path, path + "-gone"):
            for _ in range(5):
                Notifier(each).beat()


def test_no_descriptor_left_is_no_error(ear: Ear, path: str) -> None:
    code = f"""
        import resource
        from longwatch.host.sdnotify import Notifier

        print(Notifier({path!r}).tell(READY="1"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        print(Notifier({path!r}).tell(READY="1"))
    """
    with running(code) as snippet:
        assert ["True", "False"] == [snippet.line(), snippet.line()]
        assert (0, "") == snippet.end()


def beat_within(**environ: str) -> float | None:
    return Notifier.from_environment(environ).beat_within


def test_the_environment_says_where_and_how_often(ear: Ear, path: str) -> None:
    notifier = Notifier.from_environment(
        {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    )
    notifier.beat()
    assert (True, 30.0, b"WATCHDOG=1") == (notifier.is_heard, notifier.beat_within, ear.hears())


def test_beats_for_everybody_or_for_this_process_are_our_business() -> None:
    assert 2.5 == beat_within(WATCHDOG_USEC="2500000")
    assert 2.5 == beat_within(WATCHDOG_USEC="2500000", WATCHDOG_PID=str(os.getpid()))


def test_beats_for_another_process_are_not_our_business() -> None:
    assert beat_within(WATCHDOG_USEC="2500000", WATCHDOG_PID=str(os.getpid() + 1)) is None


@pytest.mark.parametrize(
    "usec",
    ["", "0", "000", "-1", "+1", "1.5", " 1", "1\n", "often", "٣", "²", "9" * 21, "9" * 5000],
)
def test_a_number_that_is_no_time_is_passed_over(usec: str) -> None:
    assert beat_within(WATCHDOG_USEC=usec) is None


def test_the_process_environment_is_read_by_default(
    monkeypatch: pytest.MonkeyPatch, ear: Ear, path: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    Notifier.from_environment().ready()
    assert b"READY=1" == ear.hears()
