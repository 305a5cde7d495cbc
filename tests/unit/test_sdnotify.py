from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaks import no_leaks
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.sdnotify import MAX_DATAGRAM_BYTES, SdNotifier
from longwatch.supervisor.notify_socket import Notice
from snippet import run_snippet

TIMEOUT = 10.0


class NotifyListener:
    """Whoever listens: a datagram socket at an address."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(TIMEOUT)
        self._socket.bind(address)

    def receive(self) -> bytes:
        return self._socket.recv(65536)

    def notice(self) -> Notice | None:
        """As our own supervisor takes it."""
        return Notice.parse(self.receive(), pid=1)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def listener(path: str) -> Iterator[NotifyListener]:
    opened = NotifyListener(path)
    yield opened
    opened.close()


def test_each_thing_is_said_in_the_words_of_sd_notify(listener: NotifyListener, path: str) -> None:
    notifier = SdNotifier(path)
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
    ] == [listener.receive() for _ in range(6)]


def test_our_own_supervisor_understands_it(listener: NotifyListener, path: str) -> None:
    SdNotifier(path).ready("up")
    SdNotifier(path).stalled("stuck")
    assert [
        Notice(pid=1, ready=True, status="up"),
        Notice(pid=1, trigger=True, status="stuck"),
    ] == [listener.notice(), listener.notice()]


def test_whether_it_was_said_is_told(listener: NotifyListener, path: str) -> None:
    assert [True, False, False] == [
        SdNotifier(each).send(READY="1") for each in (path, path + "-gone", "")
    ]


def test_an_address_with_an_at_sign_is_in_the_abstract_namespace() -> None:
    name = f"longwatch-test-{secrets.token_hex(8)}"
    listener = NotifyListener("\0" + name)
    SdNotifier(f"@{name}").ready()
    assert b"READY=1" == listener.receive()
    listener.close()


def test_a_value_cannot_say_another_line(listener: NotifyListener, path: str) -> None:
    SdNotifier(path).stalled("stuck\nREADY=1\r\nSTOPPING=1")
    assert b"WATCHDOG=trigger\nSTATUS=stuck READY=1 STOPPING=1" == listener.receive()


def test_a_long_status_is_cut_so_that_the_rest_is_heard(
    listener: NotifyListener, path: str
) -> None:
    SdNotifier(path).ready("é" * MAX_DATAGRAM_BYTES)
    heard = listener.receive()
    assert (b"READY=1", MAX_DATAGRAM_BYTES) == (heard.split(b"\n")[0], len(heard) + len(heard) % 2)
    assert {"é"} == set(heard.decode().partition("STATUS=")[2])


@given(status=st.text(st.characters()))
def test_no_text_is_one_that_cannot_be_said(status: str) -> None:
    name = f"longwatch-test-{secrets.token_hex(8)}"
    listener = NotifyListener("\0" + name)
    SdNotifier(f"@{name}").stalled(status)
    assert b"WATCHDOG=trigger" == listener.receive().split(b"\n")[0]
    listener.close()


def test_a_listener_that_does_not_listen_holds_nobody_up(
    listener: NotifyListener, path: str
) -> None:
    said: list[bool] = []
    speaking = BackgroundThread(
        lambda: said.extend(SdNotifier(path).send(WATCHDOG="1") for _ in range(1000)), name="test"
    )
    speaking.start()
    assert speaking.done.block(TIMEOUT)
    assert [True, False] == [said[0], said[-1]]


@pytest.mark.parametrize(
    "address", ["/nowhere/notify", "relative", "/" + "x" * 200, "vsock:2:1234", "@"], ids=str
)
def test_an_address_where_nobody_listens_is_no_error(address: str) -> None:
    notifier = SdNotifier(address)
    for act in (notifier.ready, notifier.stopping, notifier.beat):
        act()
    notifier.stalled("stuck")
    assert notifier.is_enabled


def test_without_an_address_nothing_is_said() -> None:
    notifier = SdNotifier.from_environment({})
    assert (False, None, False) == (
        notifier.is_enabled,
        notifier.watchdog_seconds,
        notifier.send(READY="1"),
    )


def test_speaking_leaves_no_descriptor_behind(listener: NotifyListener, path: str) -> None:
    with no_leaks():
        for each in (path, path + "-gone"):
            for _ in range(5):
                SdNotifier(each).beat()


def test_no_descriptor_left_is_no_error(listener: NotifyListener, path: str) -> None:
    code = f"""
        import resource
        from longwatch.host.sdnotify import SdNotifier

        print(SdNotifier({path!r}).send(READY="1"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        print(SdNotifier({path!r}).send(READY="1"))
    """
    with run_snippet(code) as snippet:
        assert ["True", "False"] == [snippet.read_line(), snippet.read_line()]
        assert (0, "") == snippet.wait()


def beat_within(**environ: str) -> float | None:
    return SdNotifier.from_environment(environ).watchdog_seconds


def test_the_environment_says_where_and_how_often(listener: NotifyListener, path: str) -> None:
    notifier = SdNotifier.from_environment(
        {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    )
    notifier.beat()
    assert (True, 30.0, b"WATCHDOG=1") == (
        notifier.is_enabled,
        notifier.watchdog_seconds,
        listener.receive(),
    )


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
    monkeypatch: pytest.MonkeyPatch, listener: NotifyListener, path: str
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    SdNotifier.from_environment().ready()
    assert b"READY=1" == listener.receive()
